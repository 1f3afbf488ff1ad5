#pragma once
// Operations of a whole warp: shuffles, votes, matrix instructions. All 32 lanes must come to the same one.
#include <emulator/scheduler.h>

namespace emulator {

template <class Argument>
using WarpOperation = void (*)(Argument* const (&lanes)[WARP_SIZE]);

inline int lane() { return scheduler.current->idx % WARP_SIZE; }

// The last lane to come runs `operation` on the arguments of all.
template <class Argument>
void warp_operation(Argument& argument, WarpOperation<Argument> operation) {
  Thread& thread = *scheduler.current;
  Warp& warp = thread.cta->warps[thread.idx / WARP_SIZE];
  const auto identity = reinterpret_cast<void (*)()>(operation);
  if (warp.num_arrived > 0 && warp.operation != identity) scheduler.fail("lanes of a warp do different operations");
  warp.operation = identity;
  warp.arguments[lane()] = &argument;
  warp.threads[lane()] = &thread;
  if (++warp.num_arrived < WARP_SIZE) return scheduler.wait("the other lanes of its warp");
  warp.num_arrived = 0;
  Argument* lanes[WARP_SIZE];
  for (int i = 0; i < WARP_SIZE; ++i) lanes[i] = static_cast<Argument*>(warp.arguments[i]);
  operation(lanes);
  for (Thread* other : warp.threads) {
    if (other != &thread) scheduler.resume_soon(*other);
  }
}

template <class T>
T shuffle(T value, int source) {
  struct Shuffle {
    T value, result;
    int source;
  } argument{value, value, source};
  warp_operation<Shuffle>(argument, [](Shuffle* const(&lanes)[WARP_SIZE]) {
    for (Shuffle* lane : lanes) lane->result = lanes[lane->source % WARP_SIZE]->value;
  });
  return argument.result;
}

inline unsigned ballot(bool vote) {
  struct Ballot {
    bool vote;
    unsigned result;
  } argument{vote, 0};
  warp_operation<Ballot>(argument, [](Ballot* const(&lanes)[WARP_SIZE]) {
    unsigned votes = 0;
    for (int i = 0; i < WARP_SIZE; ++i) votes |= static_cast<unsigned>(lanes[i]->vote) << i;
    for (Ballot* lane : lanes) lane->result = votes;
  });
  return argument.result;
}

inline void sync_warp() {
  int nothing = 0;
  warp_operation<int>(nothing, [](int* const(&)[WARP_SIZE]) {});
}

}  // namespace emulator
