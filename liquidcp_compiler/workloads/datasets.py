"""Stand-ins for the five training datasets of the paper (section 7.1).

The means of ArXiv, FreeLaw, GitHub and Pile-CC are those of the Pile's documents in bytes, at four bytes a token. The
spreads (sigmas) and the form of all five are ours: the paper plots the distributions but gives no numbers. They suit
comparisons of placements; they are no measurement of the datasets. Measured histograms: :mod:`.histograms`.
"""

from __future__ import annotations

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.workloads.lengths import LengthSampler, LogNormal, Packed

ARXIV = LogNormal(mean=11_930, sigma=0.80, least=256)
FREELAW = LogNormal(mean=3_860, sigma=1.15, least=64)
GITHUB = LogNormal(mean=1_344, sigma=1.50, least=16)
PILE_CC = LogNormal(mean=1_108, sigma=1.00, least=64)

#: ProLong's mix at 64K: code repositories and books packed to 65,536 tokens are 60 % of it; the rest is packs of
#: shorter documents, here as long as ArXiv's, since the paper calls the set dominated by long sequences.
PROLONG_64K = Packed(long=((65_536, 0.6),), fill=LogNormal(mean=11_930, sigma=0.80, least=256, most=65_536))

#: ProLong's mix at 512K: 20 % of tokens in documents of 524,288, 40 % in ones of 65,536, 40 % in packs.
PROLONG_512K = Packed(long=((524_288, 0.030), (65_536, 0.485)), fill=PROLONG_64K.fill)

DATASETS: dict[str, LengthSampler] = {
    "arxiv": ARXIV,
    "freelaw": FREELAW,
    "github": GITHUB,
    "pile-cc": PILE_CC,
    "prolong": PROLONG_64K,
}


def dataset(name: str, token_budget: int) -> LengthSampler:
    """The sampler of a dataset for batches of a size: ProLong has a mix of its own from 256K on.

    Raises InvalidField for an unknown name.
    """
    if name not in DATASETS:
        raise InvalidField("dataset", name, ", ".join(DATASETS))
    return PROLONG_512K if name == "prolong" and token_budget >= 262_144 else DATASETS[name]
