// NumPy's pickles: `_reconstruct` with a state of (version, shape, dtype, whether columns come first, bytes), from
// protocol 5 on `_frombuffer` with (bytes, dtype, shape, order).
#include "core/formats/tensor/saved_tensor.h"

#include <algorithm>
#include <optional>
#include <string>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/limits.h"
#include "core/formats/tensor/torch_tree.h"
#include "core/formats/tensor/torch_zip.h"

namespace ditto::formats {

namespace {

using pickle::Call;
using pickle::Ref;
using pickle::Tuple;

constexpr std::string_view kOldMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46";  // a pickled number
constexpr std::string_view kRemedy = "save one tensor with torch.save, or pickle one NumPy array";

constexpr std::string_view kEncodings = "encodings";

constexpr std::string_view kKeyRemedy = "name a key that is there, of {key: {\"encodings\": array}}";

enum class Want { all, shape };

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A tensor inside of a pickle, and its storage's bytes there.
struct Found {
  TorchTensor tensor;
  std::string_view storage;
};

class Finder {
 public:
  explicit Finder(std::string_view where) : where_(where) {}

  // With a key, what is beside its tensor is looked at for what would have to be run, and not read.
  Found one_in(Ref root, std::string_view key) {
    if (!key.empty()) {
      reads_ = false;
      visit(root, 0);
      reads_ = true;
      root = value_of(value_of(root, key), kEncodings);
    }
    visit(root, 0);
    if (!found_) fail("holds no tensor");
    return std::move(*found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::string_view remedy = kRemedy) const {
    throw Error(ErrorKind::checkpoint, where_, what, remedy);
  }

  Ref value_of(Ref from, std::string_view key) const {
    const auto* dict = from->as<pickle::Dict>();
    if (dict == nullptr) fail("has no dict where \"" + shown(key, 80) + "\" should stand", kKeyRemedy);
    std::string there;
    for (const auto& [name, value] : dict->items) {
      const auto* text = name->as<std::string_view>();
      if (text == nullptr) continue;
      if (*text == key) return value;
      there += (there.empty() ? "\"" : ", \"") + shown(*text, 40) + "\"";
    }
    fail("has no \"" + shown(key, 80) + "\", only: " + (there.empty() ? "nothing" : shown(there, 300)), kKeyRemedy);
  }

  void visit(Ref value, int depth) {
    if (++visited_ > limits::kTensorsValues || depth > limits::kPickleDepth) fail("holds too much beside its tensor");
    if (const auto* list = value->as<pickle::List>()) {
      for (const Ref item : list->items) visit(item, depth + 1);
    } else if (const auto* tuple = value->as<Tuple>()) {
      for (const Ref item : tuple->items) visit(item, depth + 1);
    } else if (const auto* dict = value->as<pickle::Dict>()) {
      for (const auto& [key, item] : dict->items) visit(item, depth + 1);
    } else if (const auto* call = value->as<Call>()) {
      const bool is_old = of_numpy(*call, "core.multiarray._reconstruct");
      const bool is_numpy = is_old || of_numpy(*call, "core.numeric._frombuffer");
      if (!is_numpy && call->function->module != "torch._utils" &&
          !call->function->is("torch._tensor._rebuild_from_type_v2"))
        fail("holds a " + shown(call->function->text(), 120) + ", which is not run");
      if (reads_) keep(is_old ? reconstructed(*call) : is_numpy ? from_buffer(*call) : of_torch(value));
    }
  }

  // numpy.core was renamed to numpy._core in NumPy 2.
  static bool of_numpy(const Call& call, const std::string& name) {
    return call.function->is("numpy." + name) || call.function->is("numpy._" + name);
  }

  void keep(Found found) {
    if (found_) fail("holds several tensors; one is expected");
    found_ = std::move(found);
  }

  Found of_torch(Ref value) const {
    auto tree = flatten_torch(value, where_);
    if (tree.tensors.size() != 1) fail("holds no tensor that is known");
    const auto storage = tree.storages.at(tree.tensors[0].storage);
    if (storage.inside.size() != storage.bytes) fail("its tensor's numbers are not in it");
    return {std::move(tree.tensors[0]), storage.inside};
  }

  Found reconstructed(const Call& call) const {
    const auto* state = call.state == nullptr ? nullptr : call.state->as<Tuple>();
    if (state == nullptr || state->items.size() != 5) fail("holds an array in an unknown form");
    const auto* columns_first = state->items[3]->as<bool>();
    if (columns_first == nullptr) fail("holds an array in an unknown form");
    return array(state->items[4], state->items[2], state->items[1], *columns_first);
  }

  Found from_buffer(const Call& call) const {
    const auto& arguments = call.arguments->items;
    const auto* order = arguments.size() != 4 ? nullptr : arguments[3]->as<std::string_view>();
    if (order == nullptr) fail("holds an array in an unknown form");
    return array(arguments[0], arguments[1], arguments[2], *order == "F");
  }

  Found array(Ref numbers, Ref dtype, Ref shape, bool columns_first) const {
    const auto* bytes = numbers->as<pickle::Bytes>();
    const auto* sides = shape->as<Tuple>();
    if (bytes == nullptr) fail("holds an array whose numbers are no bytes, as before protocol 3 of pickle");
    if (sides == nullptr || sides->items.size() > limits::kDims) fail("holds an array in an unknown form");
    TorchTensor tensor{"array", dtype_of(dtype), {}, {}, 0, {}};
    std::uint64_t size = dtype_bits(tensor.dtype) / 8;
    for (const Ref side : sides->items) {
      const auto* number = side->as<std::int64_t>();
      if (number == nullptr || *number < 0) fail("holds an array whose shape is no shape");
      tensor.shape.push_back(*number);
      if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(*number), &size)) fail("holds an array too large");
    }
    if (size != bytes->bytes.size())
      fail("holds an array of " + std::to_string(size) + " bytes by its shape, and " +
           std::to_string(bytes->bytes.size()) + " are there");
    tensor.strides.resize(tensor.shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const auto d = columns_first ? i : tensor.shape.size() - 1 - i;
      tensor.strides[d] = stride;
      stride *= std::max<std::int64_t>(tensor.shape[d], 1);
    }
    return {std::move(tensor), bytes->bytes};
  }

  // numpy.dtype("f4", False, True) with a state whose second item is the order of bytes.
  Dtype dtype_of(Ref value) const {
    const auto* call = value->as<Call>();
    const bool is_dtype = call != nullptr && call->function->is("numpy.dtype") && !call->arguments->items.empty();
    const auto* name = is_dtype ? call->arguments->items[0]->as<std::string_view>() : nullptr;
    const auto* state = is_dtype && call->state != nullptr ? call->state->as<Tuple>() : nullptr;
    const auto* order = state && state->items.size() > 1 ? state->items[1]->as<std::string_view>() : nullptr;
    if (name == nullptr || order == nullptr) fail("holds an array in an unknown form");
    if (*order == ">") fail("holds an array whose numbers are big-endian");
    if (*name == "f2") return Dtype::f16;
    if (*name == "f4") return Dtype::f32;
    if (*name == "f8") return Dtype::f64;
    fail("holds an array of " + shown(*name, 40) + "; expected f2, f4 or f8");
  }

  std::string_view where_;
  std::optional<Found> found_;
  std::size_t visited_ = 0;
  bool reads_ = true;  // tensors, and not only what they are
};

SavedTensor of_zip(std::span<const std::byte> bytes, std::string_view where, std::string_view key, Want want) {
  const auto file = TorchCheckpoint::parse(bytes, where);
  if (!key.empty()) {
    const auto name = std::string(key) + "." + std::string(kEncodings);
    for (const auto& tensor : file.tensors())
      if (tensor.name == name)
        return {tensor.dtype, tensor.shape, want == Want::all ? file.read(tensor) : std::vector<std::byte>{}};
    throw Error(ErrorKind::checkpoint, where, "has no \"" + shown(name, 120) + "\"", kKeyRemedy);
  }
  if (file.tensors().size() != 1)
    throw Error(ErrorKind::checkpoint, where,
                "holds " + std::to_string(file.tensors().size()) + " tensors; one is expected", kRemedy);
  const auto& tensor = file.tensors().front();
  return {tensor.dtype, tensor.shape, want == Want::all ? file.read(tensor) : std::vector<std::byte>{}};
}

SavedTensor of_pickle(std::span<const std::byte> bytes, std::string_view where, std::string_view key, Want want) {
  if (bytes.size() > limits::kPickleBytes)
    throw Error(ErrorKind::checkpoint, where,
                "is a pickle of " + std::to_string(bytes.size()) + " bytes; up to " +
                    std::to_string(limits::kPickleBytes) + " are read");
  pickle::Arena arena;
  auto [tensor, storage] = Finder(where).one_in(pickle::unpickle(text_of(bytes), where, arena), key);
  SavedTensor saved{tensor.dtype, tensor.shape, {}};
  const auto* begin = reinterpret_cast<const std::byte*>(storage.data());
  if (want == Want::all) saved.bytes = elements_of(tensor, {begin, begin + storage.size()}, where);
  return saved;
}

SavedTensor read(std::span<const std::byte> bytes, std::string_view where, std::string_view key, Want want) {
  try {
    if (text_of(bytes).starts_with("PK")) return of_zip(bytes, where, key, want);
    if (text_of(bytes).starts_with(kOldMagic))
      throw Error(ErrorKind::checkpoint, where, "is the old form of torch.save, a pickle without a zip archive",
                  "load it and save it again with PyTorch 1.6 or newer");
    if (text_of(bytes).starts_with("\x80")) return of_pickle(bytes, where, key, want);
  } catch (const Error& error) {  // of the parsers of checkpoints
    throw Error(ErrorKind::data, {}, error.what());
  }
  throw Error(ErrorKind::data, where, "is neither a file of torch.save nor a pickle", kRemedy);
}

}  // namespace

bool is_tensor_name(std::string_view extension) {
  extension.remove_prefix(std::min(extension.find_first_not_of('.'), extension.size()));
  return extension == "pth" || extension == "pt" || extension == "pickle" || extension == "pkl";
}

SavedTensor read_saved_tensor(std::span<const std::byte> bytes, std::string_view where, std::string_view key) {
  return read(bytes, where, key, Want::all);
}

SavedTensor saved_tensor_shape(std::span<const std::byte> bytes, std::string_view where, std::string_view key) {
  return read(bytes, where, key, Want::shape);
}

}  // namespace ditto::formats
