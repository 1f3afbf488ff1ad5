#pragma once
// The mask that the kernel is specialised on: for a whole query tile (which steps to leave out) and for a warp's rows.
#include <liquidcp/attention/band_mask.cuh>
#include <liquidcp/attention/block_mask.cuh>

namespace liquidcp {

template <MaskKind KIND>
struct MaskOf {
  using Tile = BandTile;
  using Cover = BandCover;
  using Rows = BandRows;
};
template <>
struct MaskOf<MaskKind::BLOCK_SPARSE> {
  using Tile = BlockTile;
  using Cover = BlockCover;
  using Rows = BlockRows;
};
using TileMask = MaskOf<config::MASK>::Tile;
using TileCover = MaskOf<config::MASK>::Cover;
using RowsMask = MaskOf<config::MASK>::Rows;

}  // namespace liquidcp
