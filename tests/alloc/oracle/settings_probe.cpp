// settings_probe.cpp - reads every setting of PyTorch's allocators through the getters of its configuration
// classes. Loaded through ctypes by record_settings.py.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <cstring>
using A = c10::CachingAllocator::AcceleratorAllocatorConfig;
using C = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
extern "C" {
void probe_sizes(uint64_t* o) {
  int k = 0;
  o[k++] = A::large_segment_size();
  o[k++] = A::max_split_size();
  o[k++] = A::max_non_split_rounding_size();
  o[k++] = A::use_expandable_segments();
  o[k++] = C::release_lock_on_cudamalloc();
  o[k++] = C::graph_capture_record_stream_reuse();
  o[k++] = C::throw_on_cudamalloc_oom();
  o[k++] = C::pinned_use_cuda_host_register();
  o[k++] = C::pinned_num_register_threads();
  o[k++] = A::pinned_use_background_threads();
  o[k++] = C::pinned_reserve_segment_size_mb();
  o[k++] = C::pinned_free_catch_all();
  o[k++] = A::pinned_max_round_threshold();
  o[k++] = A::pinned_max_cached_size();
  const auto& v = A::roundup_power2_divisions();
  for (size_t i = 0; i < 16; i++) o[k++] = i < v.size() ? v[i] : 999999;
}
void probe_doubles(double* o) {
  o[0] = A::garbage_collection_threshold();
  o[1] = C::per_process_memory_fraction();
}
}
