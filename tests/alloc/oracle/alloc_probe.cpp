// alloc_probe.cpp - what Python cannot reach of PyTorch's CUDACachingAllocator: the counters by
// which equal free blocks are ordered, the registry of free-memory callbacks, and the observers of
// refused requests. Loaded through ctypes by the recorders here.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>

namespace ca = c10::cuda::CUDACachingAllocator;

namespace {
bool (*g_callbacks[8])() = {};

template <int N>
struct Callback : public c10::FreeMemoryCallback {
  bool Execute() override {
    return g_callbacks[N] && g_callbacks[N]();
  }
};

template <int N>
void add(const char* name) {
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      name,
      []() -> std::unique_ptr<c10::FreeMemoryCallback> { return std::make_unique<Callback<N>>(); });
}
} // namespace

extern "C" {
// Segments of the snapshot: address, counter, total size, expandable. Returns how many there are.
uint64_t probe_segments(uint64_t* out, uint64_t room) {
  auto info = ca::snapshot();
  uint64_t n = 0;
  for (auto& s : info.segments) {
    if (n < room) {
      uint64_t* o = out + 4 * n;
      o[0] = s.address;
      o[1] = (uint64_t)(int64_t)s.registration_counter;
      o[2] = s.total_size;
      o[3] = s.is_expandable;
    }
    n++;
  }
  return n;
}

// `call` gets device, size, bytes reserved so far and bytes of the device, for each refused request.
void probe_observe_rejections(void (*call)(int64_t, uint64_t, uint64_t, uint64_t)) {
  ca::attachOomRejectionObserver(call);
}

// Registers callback `slot` (0..7) under a name that sorts by slot; `call` says whether memory was freed.
void probe_add_callback(int slot, bool (*call)()) {
  bool fresh = g_callbacks[slot] == nullptr;
  g_callbacks[slot] = call;
  if (!fresh) return;
  switch (slot) {
    case 0: add<0>("probe0"); break;
    case 1: add<1>("probe1"); break;
    case 2: add<2>("probe2"); break;
    case 3: add<3>("probe3"); break;
  }
}
}
