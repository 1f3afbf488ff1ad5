"""What LiquidCP is measured against, built on FlashAttention-3's kernel from its wheel."""
