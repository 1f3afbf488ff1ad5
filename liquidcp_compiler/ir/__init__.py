"""Tiles, tasks, graphs, their text form and verifier, the descriptor layout and the frozen Plan."""
