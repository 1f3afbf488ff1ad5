#pragma once
// Which thread runs next: one at a time, mostly in turn, now and then any other, as the seed says. Time is the
// emulator's own: a nanosecond a switch, and when all sleep it jumps to the first who wakes. So a seed says all about
// a run, however fast the machine is.
#include <emulator/grid.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <utility>

namespace emulator {

class Scheduler {
 public:
  Thread* current = nullptr;
  unsigned num_ctas = 0;

  // Runs until no thread can go on. Returns what is wrong, or nothing.
  std::string run(std::vector<Thread>& threads, uint64_t seed) {
    random_ = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    ready_.clear();
    sleeping_ = {};
    now_ = 1'000'000;
    error_.clear();
    uint64_t start = 0;
    for (Thread& thread : threads) {
      if (thread.idx == 0) start = now_ + any_while();  // CTAs start in any order
      sleeping_.push({start, &thread});
    }
    go(main_, next());
    return error_.empty() ? stuck(threads) : error_;
  }

  // The current thread leaves; somebody must resume it.
  void wait(const char* what) {
    current->waits_for = what;
    Thread* self = current;
    Thread* other = next();
    if (other != self) go(self->context, other);
  }
  void resume(Thread& thread) { ready_.push_back(&thread); }
  void resume_soon(Thread& thread) { ready_.push_front(&thread); }

  void yield() {
    resume(*current);
    wait("its turn");
  }
  // Every access to memory that other threads may see is a chance for them, and now and then for a long while.
  void maybe_yield() {
    if (random() % 64 == 0) sleep(any_while());
    else if (random() % 4 == 0) yield();
  }
  void sleep(uint64_t ns) {
    sleeping_.push({now_ + ns, current});
    wait("the end of a sleep");
  }
  uint64_t now() const { return now_; }

  void finish() {
    current->done = true;
    wait("nothing");
  }

  // Ends the launch.
  void fail(const std::string& what) {
    error_ = name(*current) + ": " + what;
    go(current->context, nullptr);
  }

 private:
  using Sleeper = std::pair<uint64_t, Thread*>;

  void go(Context& from, Thread* to) {
    current = to;
    Context::change(from, to == nullptr ? main_ : to->context);
  }

  Thread* next() {
    ++now_;
    if (ready_.empty() && !sleeping_.empty()) now_ = std::max(now_, sleeping_.top().first);
    while (!sleeping_.empty() && sleeping_.top().first <= now_) {
      ready_.push_back(sleeping_.top().second);
      sleeping_.pop();
    }
    if (ready_.empty()) return nullptr;
    if (random() % 8 == 0) std::swap(ready_.front(), ready_[random() % ready_.size()]);
    Thread* thread = ready_.front();
    ready_.pop_front();
    return thread;
  }

  static std::string name(const Thread& thread) {
    return "CTA " + std::to_string(thread.cta->idx) + ", thread " + std::to_string(thread.idx);
  }

  static std::string stuck(const std::vector<Thread>& threads) {
    std::string first;
    int count = 0;
    for (const Thread& thread : threads) {
      if (!thread.done && count++ == 0) first = name(thread) + " for " + thread.waits_for;
    }
    return count == 0 ? "" : std::to_string(count) + " threads wait for ever; " + first;
  }

  // Nanoseconds, up to some compute tasks' worth: each order of magnitude is as likely.
  uint64_t any_while() { return 1ull << random() % 18; }

  unsigned random() {  // xorshift
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<unsigned>(random_ >> 11);
  }

  Context main_;
  std::deque<Thread*> ready_;
  std::priority_queue<Sleeper, std::vector<Sleeper>, std::greater<>> sleeping_;
  uint64_t now_ = 0, random_ = 1;
  std::string error_;
};

inline Scheduler scheduler;

}  // namespace emulator
