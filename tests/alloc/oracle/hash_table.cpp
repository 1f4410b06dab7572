// Runs a program of a hash table on the one that PyTorch's allocator uses, and prints its walks.
// A line is an operation and a number: i KEY (enter), e KEY (erase), n 0 (a new table), w 0 (walk),
// x MASK (walk, and erase each key that has none of these bits in its sixth bit and above).
#include <c10/util/flat_hash_map.h>
#include <cstdint>
#include <cstdio>

using Table = ska::flat_hash_map<uint64_t, int>;

int main() {
  Table table;
  char what;
  unsigned long long number;
  while (scanf(" %c %llu", &what, &number) == 2) {
    if (what == 'i') table.emplace(number, 0);
    if (what == 'e') table.erase(number);
    if (what == 'n') table = Table();
    if (what != 'w' && what != 'x') continue;
    for (auto at = table.begin(); at != table.end();) {
      printf("%llu ", static_cast<unsigned long long>(at->first));
      bool erased = what == 'x' && ((at->first >> 5) & number) == 0;
      if (erased) at = table.erase(at);
      else ++at;
    }
    printf("\n");
  }
}
