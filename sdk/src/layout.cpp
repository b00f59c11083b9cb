#include <ditto/layout.h>

#include <numeric>

#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/options.h>

namespace ditto {

using torch::Tensor;

namespace {

// A run of numbers along one dim that lies unbroken in the global and in the local tensor.
struct Segment {
  int64_t global, local, length;
};

std::vector<Segment> segments_of(const Cut& cut) {
  std::vector<Segment> segments;
  int64_t global = 0, local = 0;
  for (const int64_t part : cut.parts) {
    const int64_t length = part / cut.count;
    if (length > 0) segments.push_back({global + cut.index * length, local, length});
    global += part;
    local += length;
  }
  return segments;
}

const Cut* cut_of_dim(const LayoutEntry& entry, int64_t dim) {
  for (const auto& [axis, cut] : entry.cuts)
    if (cut.dim == dim) return &cut;
  return nullptr;
}

void check_cut(const LayoutEntry& entry, Axis axis, const Cut& cut) {
  const int64_t length = entry.full_shape.at(cut.dim);
  if (std::accumulate(cut.parts.begin(), cut.parts.end(), int64_t{0}) != length)
    throw Error(ErrorKind::config, "parameter \"" + entry.name + "\"",
                "the parts of its cut along " + std::string(name(axis)) + " do not add up to the " +
                    std::to_string(length) + " numbers of dim " + std::to_string(cut.dim));
  for (const int64_t part : cut.parts)
    if (part % cut.count != 0)
      throw Error(ErrorKind::config, "parameter \"" + entry.name + "\"",
                  "parallel." + std::string(name(axis)) + " = " + std::to_string(cut.count) + " does not divide " +
                      std::to_string(part) + ", the length of a part of dim " + std::to_string(cut.dim),
                  "choose a degree that divides it");
}

}  // namespace

std::vector<Rectangle> LayoutEntry::slices() const {
  std::vector<Rectangle> rectangles(1);
  for (int64_t dim = 0; dim < static_cast<int64_t>(full_shape.size()); ++dim) {
    const Cut* cut = cut_of_dim(*this, dim);
    const auto segments = cut ? segments_of(*cut) : segments_of({dim, {full_shape[dim]}, 0, 1});
    std::vector<Rectangle> longer;
    for (const auto& head : rectangles) {
      for (const auto& segment : segments) {
        Rectangle rectangle = head;
        rectangle.global_start.push_back(segment.global);
        rectangle.local_start.push_back(segment.local);
        rectangle.size.push_back(segment.length);
        longer.push_back(std::move(rectangle));
      }
    }
    rectangles = std::move(longer);
  }
  return rectangles;
}

Layout Layout::of(Model& model) {
  std::map<const at::TensorImpl*, std::pair<LinearModule*, bool>> owners;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* linear = dynamic_cast<LinearModule*>(module.get());
    if (!linear) continue;
    owners[linear->weight.unsafeGetTensorImpl()] = {linear, false};
    if (linear->bias.defined()) owners[linear->bias.unsafeGetTensorImpl()] = {linear, true};
  }
  const auto units = model.units();
  Layout layout;
  for (const auto& item : model.named_parameters()) {
    LayoutEntry entry{item.key(), item.value(), item.value().sizes().vec(), units.at(item.key())};
    if (const auto it = owners.find(item.value().unsafeGetTensorImpl()); it != owners.end())
      std::tie(entry.linear, entry.is_bias) = it->second;
    layout.entries.push_back(std::move(entry));
  }
  return layout;
}

const LayoutEntry& Layout::at(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  const std::string near = nearest(name, names);
  throw Error(ErrorKind::shape, "parameter \"" + name + "\"", "is not in this rank's layout",
              near.empty() ? "" : "the nearest name is \"" + near + "\"");
}

std::vector<int64_t> local_shape(const LayoutEntry& entry) {
  auto shape = entry.full_shape;
  for (const auto& [axis, cut] : entry.cuts) {
    check_cut(entry, axis, cut);
    shape[cut.dim] /= cut.count;
  }
  return shape;
}

Tensor cut(const Tensor& full, const Cut& cut) {
  torch::NoGradGuard no_grad;
  std::vector<Tensor> pieces;
  for (const auto& segment : segments_of(cut)) pieces.push_back(full.narrow(cut.dim, segment.global, segment.length));
  if (pieces.empty()) return full.narrow(cut.dim, 0, 0).clone(torch::MemoryFormat::Contiguous);
  return torch::cat(pieces, cut.dim).contiguous();  // of one piece too: a copy, so that the whole can be freed
}

}  // namespace ditto
