#include "base/spelling.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvist {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  std::iota(cost[0].begin(), cost[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  constexpr size_t kNear = 2, kLongest = 256;
  if (word.size() > kLongest) return {};
  std::string_view nearest;
  size_t best = kNear + 1;
  for (const std::string_view each : known) {
    const size_t distance = edit_distance(word, each);
    if (distance < best && distance < each.size()) {
      best = distance;
      nearest = each;
    }
  }
  return nearest;
}

}  // namespace kvist
