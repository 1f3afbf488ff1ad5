"""Batches to plan: samplers of document lengths, measured histograms, and a serving trace. All need a seed or a file.

``sample_batch("freelaw", 131072, seed=0)`` gives the lengths of one batch.
"""

from liquidcp_compiler.workloads.batches import Rounding, sample_batch
from liquidcp_compiler.workloads.datasets import DATASETS
from liquidcp_compiler.workloads.histograms import load_lengths
from liquidcp_compiler.workloads.lengths import Histogram, LengthSampler, LogNormal, Measured, Packed
from liquidcp_compiler.workloads.trace import Trace, load_trace

__all__ = [
    "DATASETS",
    "Histogram",
    "LengthSampler",
    "LogNormal",
    "Measured",
    "Packed",
    "Rounding",
    "Trace",
    "load_lengths",
    "load_trace",
    "sample_batch",
]
