#include "replay/cost_model.h"

#include <array>
#include <cstdio>

namespace kvist::replay {
namespace {

struct ModelSize {
  std::string_view name;
  double parameters;
  uint32_t layers;
  uint32_t attention_width;
};

// From the published configuration files: parameters, num_hidden_layers, num_attention_heads * head_dim.
constexpr std::array kModels = {
    ModelSize{"llama-3.1-8b", 8.03e9, 32, 32 * 128},
    ModelSize{"qwen3-32b", 32.8e9, 64, 64 * 128},
    ModelSize{"llama-3.1-70b", 70.6e9, 80, 64 * 128},
    ModelSize{"llama-3.1-405b", 405.9e9, 126, 128 * 128},
};

struct DevicePeak {
  std::string_view name;
  double flops;
};

// BF16 without sparsity, from the data sheets.
constexpr std::array kDevices = {
    DevicePeak{"a100-sxm", 312e12},
    DevicePeak{"h100-sxm", 989e12},
    DevicePeak{"h200-sxm", 989e12},
    DevicePeak{"b200-sxm", 2250e12},
};

template <typename Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& row : table) names.append(names.empty() ? "" : ", ").append(row.name);
  return names;
}

template <typename Table>
auto find_named(const Table& table, std::string_view name) -> decltype(&table[0]) {
  for (const auto& row : table) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

double CostModel::prefill_seconds(uint64_t context, uint64_t tokens) const {
  double n = static_cast<double>(tokens), c = static_cast<double>(context);
  double attended = c * n + n * (n - 1) / 2 + n;
  double operations = 2 * parameters * n + 4.0 * layers * attention_width * attended;
  return operations / (devices * peak_flops * utilisation);
}

std::string CostModel::describe() const {
  char text[256];
  std::snprintf(text, sizeof text, "%s on %u x %s (BF16 peak %.0f TFLOP/s each) at an assumed %.0f %% of peak",
                model.c_str(), devices, device.c_str(), peak_flops / 1e12, utilisation * 100);
  return text;
}

std::string known_models() { return names_of(kModels); }
std::string known_devices() { return names_of(kDevices); }

StatusOr<CostModel> make_cost_model(std::string_view model, std::string_view device, uint32_t devices, double utilisation) {
  const ModelSize* size = find_named(kModels, model);
  if (size == nullptr) {
    return invalid_argument("no model called '" + std::string(model) + "' is known; known are " + known_models());
  }
  const DevicePeak* peak = find_named(kDevices, device);
  if (peak == nullptr) {
    return invalid_argument("no device called '" + std::string(device) + "' is known; known are " + known_devices());
  }
  if (devices == 0) return invalid_argument("the cost model needs at least one device");
  if (!(utilisation > 0 && utilisation <= 1)) return invalid_argument("the utilisation must be above 0 and at most 1");
  CostModel cost;
  cost.model = size->name;
  cost.parameters = size->parameters;
  cost.layers = size->layers;
  cost.attention_width = size->attention_width;
  cost.device = peak->name;
  cost.devices = devices;
  cost.peak_flops = peak->flops;
  cost.utilisation = utilisation;
  return cost;
}

}  // namespace kvist::replay
