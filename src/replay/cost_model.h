// replay/cost_model.h: what a cached prefix saves, in seconds of prefill, under a model that is stated and can be replaced.
//
// Prefilling the tokens c..c+n-1 of a prompt costs, in floating-point operations,
//
//   2 * parameters * n  +  4 * layers * attention_width * (c*n + n*(n-1)/2 + n)
//
// The first term is one multiply and one add for each weight and token; the second is attention: for each token and layer
// a product with each key up to and including its own and a sum over as many values, 2 * attention_width operations
// each. (Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1, has the same two terms.)
// Seconds are that, divided by peak * utilisation of all devices together. It leaves out what a prefill also costs:
// embedding look-ups, norms, communication between devices, and queueing.
//
// It is an estimate for comparing cache sizes and policies, not a measurement: no figure here was timed. The defaults are
// published sizes (the model's configuration file, the device's data sheet) and an assumed utilisation; print
// `describe()` beside every figure that comes from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist::replay {

struct CostModel {
  std::string model = "llama-3.1-70b";
  double parameters = 70.6e9;  // active for a token
  uint32_t layers = 80;
  uint32_t attention_width = 8192;  // query heads * head dimension
  std::string device = "h100-sxm";
  uint32_t devices = 8;
  double peak_flops = 989e12;  // of one device, dense, in the data type of the weights
  double utilisation = 0.5;    // an assumption: share of the peak that a well-tuned prefill reaches

  // Seconds to prefill `tokens` tokens that follow `context` tokens already in the cache.
  double prefill_seconds(uint64_t context, uint64_t tokens) const;
  // "llama-3.1-70b on 8 x h100-sxm (bf16 peak 989 TFLOP/s each) at an assumed 50 % of peak".
  std::string describe() const;
};

// The models and devices known by name, for messages and help: "llama-3.1-8b, llama-3.1-70b, ...".
std::string known_models();
std::string known_devices();

// A cost model of known parts. kInvalidArgument for a name that is not known (the message lists those that are), for no
// device, and for a utilisation outside (0, 1].
StatusOr<CostModel> make_cost_model(std::string_view model, std::string_view device, uint32_t devices, double utilisation);

}  // namespace kvist::replay
