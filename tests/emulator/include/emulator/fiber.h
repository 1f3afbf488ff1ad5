#pragma once
// A GPU thread as a fiber: a function with a stack of its own that leaves and goes on by switches.
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace emulator {

// Where a fiber goes on. A new one is entered by ucontext, the portable way to begin on another stack; after that
// _setjmp and _longjmp switch, since swapcontext costs two system calls.
class Context {
 public:
  void start_at(void (*function)(), char* stack, size_t bytes) {
    getcontext(&entry_);
    entry_.uc_stack.ss_sp = stack;
    entry_.uc_stack.ss_size = bytes;
    entry_.uc_link = nullptr;
    makecontext(&entry_, function, 0);
    entered_ = false;
  }

  // Leaves `from` here, goes on in `to`, and returns when somebody switches back to `from`.
  __attribute__((noinline)) static void change(Context& from, Context& to) {
    if (_setjmp(from.jump_) != 0) return;
    if (to.entered_) _longjmp(to.jump_, 1);
    to.entered_ = true;
    setcontext(&to.entry_);
  }

 private:
  ucontext_t entry_;
  jmp_buf jump_;
  bool entered_ = true;  // the caller's own context, which runs already
};

// Equal stacks in one mapping, each above a page that faults, so that an overflow does not end up in a neighbour.
class Stacks {
 public:
  static constexpr size_t BYTES = 64 * 1024;

  explicit Stacks(size_t count) : page_(sysconf(_SC_PAGESIZE)), size_(count * (BYTES + page_)) {
    base_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) return;
    for (size_t i = 0; i < count; ++i) mprotect(base_ + i * (BYTES + page_), page_, PROT_NONE);
  }
  ~Stacks() {
    if (exist()) munmap(base_, size_);
  }
  Stacks(const Stacks&) = delete;

  bool exist() const { return base_ != MAP_FAILED; }
  char* stack(size_t i) const { return base_ + i * (BYTES + page_) + page_; }

 private:
  size_t page_, size_;
  char* base_;
};

}  // namespace emulator
