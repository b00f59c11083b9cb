// Adapters: low-rank terms of a model's layers, learned while all else of it is frozen. [adapter]
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/config/recipe.h"

namespace ditto {

// Gives the layers that the options name their terms, and returns the options with all that they leave to the weights
// filled in. Throws Error(config) for a pattern that matches no layer, naming the nearest; Error(checkpoint).
AdapterOptions adapt(Units& model, AdapterOptions options);
// Of a model that is here whole: the terms become a part of the layers' weights. Throws Error(plugin) naming a layer
// that keeps its term.
void merge_adapter(Units& model);

bool is_of_adapter(const std::string& parameter);
// The entries that are of one, or those that are not; the same tensors.
Layout adapter_of(const Layout& layout);
Layout base_of(const Layout& layout);

// Fills the adapter's part of the layout from options.weights, which must be of the same layers. Throws
// Error(checkpoint).
void load_adapter(const AdapterOptions& options, const Units& model, const Layout& layout, checkpoint::Which which);
// Facts that tell weights from others: what ranks must find alike.
std::string fingerprint_of_adapter(const std::string& weights);

// What a checkpoint of an adapter notes of the checkpoint that it is learned on, which holds all else.
struct AdapterBase {
  std::string path, which, fingerprint;  // "ema" or "weights"
};
AdapterBase adapter_base(const std::string& path, const std::string& which);
std::map<std::string, std::string> notes_of(const AdapterBase& base);
// Of a checkpoint's notes; none: it is not of an adapter.
std::optional<AdapterBase> adapter_base(const std::map<std::string, std::string>& notes);
// Throws Error(checkpoint) where what lies at its path is not there, or is another. `where`: the adapter's checkpoint.
void require(const AdapterBase& base, const std::string& where);

}  // namespace ditto
