#include <ditto/parallel/layout.h>

#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/options.h>

namespace ditto {

using torch::Tensor;

namespace {

// A run of numbers along one dim that lies unbroken in the global and in the local tensor.
struct Segment {
  int64_t global, local, length;
};

// Where piece `index` of a part begins.
int64_t bound(int64_t part, const Cut& cut, int64_t index) {
  const int64_t units = (part + cut.multiple - 1) / cut.multiple;
  return std::min(part, units * index / cut.count * cut.multiple);
}

// The runs that one cut takes out of a dim.
std::vector<Segment> segments_of(const Cut& cut) {
  std::vector<Segment> segments;
  int64_t start = 0, local = 0;
  for (const int64_t part : cut.parts) {
    const int64_t begin = bound(part, cut, cut.index), length = bound(part, cut, cut.index + 1) - begin;
    if (length > 0) segments.push_back({start + begin, local, length});
    start += part;
    local += length;
  }
  return segments;
}

int64_t length_of(const std::vector<Segment>& segments) {
  return segments.empty() ? 0 : segments.back().local + segments.back().length;
}

// `cut` taken out of what `before` has left.
std::vector<Segment> then(const std::vector<Segment>& before, const Cut& cut) {
  std::vector<Segment> result;
  for (const auto& taken : segments_of(cut)) {
    for (const auto& segment : before) {
      const int64_t begin = std::max(taken.global, segment.local);
      const int64_t end = std::min(taken.global + taken.length, segment.local + segment.length);
      if (begin < end)
        result.push_back({segment.global + begin - segment.local, taken.local + begin - taken.global, end - begin});
    }
  }
  return result;
}

// What all cuts of a dim leave of it.
std::vector<Segment> segments_of_dim(const LayoutEntry& entry, int64_t dim) {
  const int64_t length = entry.full_shape[static_cast<size_t>(dim)];
  std::vector<Segment> segments;
  if (length > 0) segments.push_back({0, 0, length});
  for (const Axis axis : kCutOrder) {
    const auto it = entry.cuts.find(axis);
    if (it == entry.cuts.end() || it->second.dim != dim) continue;
    const auto& cut = it->second;
    if (std::accumulate(cut.parts.begin(), cut.parts.end(), int64_t{0}) != length_of(segments))
      throw Error(ErrorKind::config, "parameter \"" + entry.name + "\"",
                  "the parts of its cut along " + std::string(name(axis)) + " do not add up to the " +
                      std::to_string(length_of(segments)) + " numbers of dim " + std::to_string(dim));
    segments = then(segments, cut);
  }
  return segments;
}

}  // namespace

const ParameterCut* LayoutEntry::declared(Axis axis) const {
  const LayerCut* cut = layer ? layer->cut(axis) : nullptr;
  if (!cut) return nullptr;
  for (const auto& one : cut->parameters)
    if (one.parameter == own) return &one;
  return nullptr;
}

std::string LayoutEntry::layer_name() const {
  return own.empty() ? name.substr(0, name.rfind('.')) : name.substr(0, name.size() - own.size() - 1);
}

std::vector<Rectangle> LayoutEntry::slices() const {
  std::vector<Rectangle> rectangles(1);
  for (int64_t dim = 0; dim < static_cast<int64_t>(full_shape.size()); ++dim) {
    const auto segments = segments_of_dim(*this, dim);
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

Layout Layout::of(Units& network, const std::string& prefix) {
  struct Owner {
    Parameter parameter;
    CutLayer* layer = nullptr;
  };
  std::map<const at::TensorImpl*, Owner> owners;
  std::map<const CutLayer*, std::string> layers;  // a layer comes before what it is made of
  const auto note = [&](Module* own, const std::string& name) {
    if (!own) return;
    layers.emplace(own->cut_layer(), name);
    for (const auto& parameter : own->own_parameters())
      owners[parameter.leaf().unsafeGetTensorImpl()] = {parameter, own->cut_layer()};
  };
  note(&network, "");
  for (const auto& module : network.named_modules("", /*include_self=*/false))
    note(dynamic_cast<Module*>(module.value().get()), module.key());
  const auto units = network.units();
  Layout layout;
  for (const auto& item : network.named_parameters()) {
    const auto at = owners.find(item.value().unsafeGetTensorImpl());
    if (at == owners.end())
      throw Error(ErrorKind::plugin, "parameter \"" + item.key() + "\"", "has no initial values",
                  "make it with Module::parameter");
    const auto& owner = at->second;
    LayoutEntry entry{prefix + item.key(), item.value(), item.value().sizes().vec(), units.at(item.key()),
                      owner.parameter};
    entry.layer = owner.layer;
    if (entry.layer) entry.own = item.key().substr(layers.at(entry.layer).size() + 1);
    entry.trains = item.value().requires_grad();
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
  std::vector<int64_t> shape;
  for (int64_t dim = 0; dim < static_cast<int64_t>(entry.full_shape.size()); ++dim)
    shape.push_back(length_of(segments_of_dim(entry, dim)));
  return shape;
}

LayoutEntry LayoutEntry::in_blocks(int64_t block) const {
  LayoutEntry result = *this;
  result.tensor = Tensor();
  if (full_shape.empty()) return result;
  const int64_t last = static_cast<int64_t>(full_shape.size()) - 1;
  const auto blocks = [&](int64_t n) { return (n + block - 1) / block; };
  result.full_shape.back() = blocks(full_shape.back());
  for (auto& [axis, cut] : result.cuts) {
    if (cut.dim != last) continue;
    const Cut before = cut;
    cut.multiple = std::max<int64_t>(1, cut.multiple / block);
    for (int64_t& part : cut.parts) part = blocks(part);
    for (size_t i = 0; i < cut.parts.size(); ++i) {
      const int64_t part = before.parts[i];
      bool fits = part % block == 0 || i + 1 == cut.parts.size();
      for (int64_t piece = 0; fits && piece <= cut.count; ++piece) {
        const int64_t at = bound(part, before, piece);
        fits = (at % block == 0 || at == part) && bound(cut.parts[i], cut, piece) == blocks(at);
      }
      if (!fits)
        throw Error(ErrorKind::config, "parameter \"" + name + "\"",
                    "its cut along " + std::string(ditto::name(axis)) + " goes through a block of " +
                        std::to_string(block) + " numbers of the optimizer's state: " + std::to_string(part) +
                        " numbers in " + std::to_string(cut.count) + " pieces",
                    "choose another degree, or another optimizer");
    }
  }
  return result;
}

Tensor cut(const Tensor& full, const Cut& cut) {
  torch::NoGradGuard no_grad;
  if (is_freed(full)) {
    auto shape = full.sizes().vec();
    shape[static_cast<size_t>(cut.dim)] = length_of(segments_of(cut));
    const auto piece = torch::empty(shape, full.options().requires_grad(false));
    free_storage(piece);
    return piece;
  }
  std::vector<Tensor> pieces;
  for (const auto& segment : segments_of(cut)) pieces.push_back(full.narrow(cut.dim, segment.global, segment.length));
  if (pieces.empty()) return full.narrow(cut.dim, 0, 0).clone(torch::MemoryFormat::Contiguous);
  return torch::cat(pieces, cut.dim).contiguous();  // of one piece too: a copy, so that the whole can be freed
}

namespace {

Tensor drawn(const LayoutEntry& entry, const Rectangle& piece, const Init& init, const Random& random) {
  const auto id = static_cast<int64_t>(number_of(entry.name));
  if (init.kind == Init::Kind::normal)
    return random.normal_block(Purpose::initial_weights, id, entry.full_shape, piece.global_start, piece.size)
        .mul_(init.scale);
  return random.uniform_block(Purpose::initial_weights, id, entry.full_shape, piece.global_start, piece.size)
      .mul_(2)
      .sub_(1)
      .mul_(init.scale);
}

void fill(const LayoutEntry& entry, const Init& init, const Random& random) {
  auto tensor = entry.tensor.detach();
  if (init.kind == Init::Kind::zeros) return void(tensor.zero_());
  if (init.kind == Init::Kind::ones) return void(tensor.fill_(1));
  for (const auto& piece : entry.slices()) {
    auto here = tensor;
    for (size_t dim = 0; dim < piece.size.size(); ++dim)
      here = here.narrow(static_cast<int64_t>(dim), piece.local_start[dim], piece.size[dim]);
    here.copy_(drawn(entry, piece, init, random));
  }
}

}  // namespace

void initialise(Layout& layout, const Random& random) {
  torch::NoGradGuard no_grad;
  for (auto& entry : layout.entries) {
    if (is_freed(entry.tensor)) fill_storage(entry.tensor);
    fill(entry, entry.parameter.init(), random);
  }
}

void initialise(Units& units, const Random& random) {
  auto layout = Layout::of(units);
  initialise(layout, random);
}

}  // namespace ditto
