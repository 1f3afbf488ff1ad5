"""From a kernel specification to CUDA source: small generated files on top of the device headers in ``include/``."""
