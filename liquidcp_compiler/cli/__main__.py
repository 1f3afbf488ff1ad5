"""``python -m liquidcp_compiler.cli``."""

import sys

from liquidcp_compiler.cli import main

sys.exit(main())
