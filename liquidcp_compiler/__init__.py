"""LiquidCP: a compiler for context-parallel attention."""
