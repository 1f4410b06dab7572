/* fakegraph.c - graph capture with a real graph, on top of libfakecuda.so (preload it first).
 *
 * The stand-in driver knows captures but no nodes. PyTorch's allocator, told to reuse blocks during a
 * capture, asks which nodes end a stream's work and what they depend on. Here a capture has nodes
 * and edges:
 *   fakegraph_node(stream)        work on a capturing stream: one node after all that end its work
 *   fakegraph_wait(stream, on)    `stream` waits for the work of `on`; if that is capturing, `stream`
 *                                 joins its capture
 * A stream that joined leaves the capture when it ends. The calls are logged by libfakecuda as before.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define MAX_STREAMS 64
#define MAX_NODES (1 << 20)
#define MAX_ENDS 64

typedef unsigned long long u64;
typedef struct {
  cudaStream_t handle;
  u64 capture;                 /* 0: not capturing */
  int n_ends;
  cudaGraphNode_t ends[MAX_ENDS]; /* the nodes that the next work depends on */
} Stream;
typedef struct {
  int n;
  cudaGraphNode_t* before;
} Node;

static Stream streams[MAX_STREAMS];
static int n_streams;
static Node* nodes;
static u64 n_nodes = 1;

static Stream* find(cudaStream_t handle) {
  for (int i = 0; i < n_streams; i++)
    if (streams[i].handle == handle) return &streams[i];
  if (n_streams == MAX_STREAMS) abort();
  memset(&streams[n_streams], 0, sizeof(Stream));
  streams[n_streams].handle = handle;
  return &streams[n_streams++];
}

static void add_end(Stream* s, cudaGraphNode_t node) {
  for (int i = 0; i < s->n_ends; i++)
    if (s->ends[i] == node) return;
  if (s->n_ends == MAX_ENDS) abort();
  s->ends[s->n_ends++] = node;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

API void fakegraph_node(cudaStream_t handle) {
  Stream* s = find(handle);
  if (!s->capture) return;
  if (!nodes) nodes = calloc(MAX_NODES, sizeof(Node));
  if (n_nodes == MAX_NODES) abort();
  u64 id = n_nodes++;
  nodes[id].n = s->n_ends;
  nodes[id].before = malloc(sizeof(cudaGraphNode_t) * (s->n_ends ? s->n_ends : 1));
  memcpy(nodes[id].before, s->ends, sizeof(cudaGraphNode_t) * s->n_ends);
  s->ends[0] = (cudaGraphNode_t)(id * 16);
  s->n_ends = 1;
}

API void fakegraph_wait(cudaStream_t handle, cudaStream_t on) {
  Stream *s = find(handle), *o = find(on);
  if (!o->capture || (s->capture && s->capture != o->capture)) return;
  if (!s->capture) s->n_ends = 0;
  s->capture = o->capture;
  for (int i = 0; i < o->n_ends; i++) add_end(s, o->ends[i]);
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  static u64 next = 1;
  cudaError_t e = NEXT(cudaStreamBeginCapture)(handle, mode);
  Stream* s = find(handle);
  s->capture = next++;
  s->n_ends = 0;
  return e;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* g) {
  Stream* s = find(handle);
  u64 capture = s->capture;
  for (int i = 0; i < n_streams; i++)
    if (streams[i].capture == capture) streams[i].capture = 0;
  return NEXT(cudaStreamEndCapture)(handle, g);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus* status) {
  *status = find(handle)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus* status,
    unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** ends,
    const cudaGraphEdgeData** edges, size_t* n) {
  Stream* s = find(handle);
  *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = s->capture;
  if (graph) *graph = (cudaGraph_t)(0x2000 + 16 * s->capture);
  if (ends) *ends = s->capture ? s->ends : NULL;
  if (edges) *edges = NULL;
  if (n) *n = s->capture ? s->n_ends : 0;
  return cudaSuccess;
}

API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* before,
    cudaGraphEdgeData* edges, size_t* n) {
  Node* it = &nodes[(u64)node / 16];
  if (before)
    for (size_t i = 0; i < *n && (int)i < it->n; i++) before[i] = it->before[i];
  if (edges) memset(edges, 0, sizeof(cudaGraphEdgeData) * it->n);
  *n = it->n;
  return cudaSuccess;
}
