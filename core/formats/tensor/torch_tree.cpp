#include "core/formats/tensor/torch_tree.h"

#include <ditto/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "core/formats/limits.h"

namespace ditto::formats {

namespace {

using pickle::Call;
using pickle::Dict;
using pickle::Global;
using pickle::List;
using pickle::PersistentId;
using pickle::Ref;
using pickle::Tuple;

constexpr std::size_t kVisitCost = 32;    // of looking at a value
constexpr std::size_t kValueCost = 160;   // of a value in the tree, beside its texts
constexpr std::size_t kTensorCost = 600;  // of a tensor
constexpr std::size_t kShownPlace = 200;  // of a place in a message

struct Named {
  std::string_view name;
  Dtype dtype;
};

constexpr std::array<Named, 11> kStorages{{{"torch.DoubleStorage", Dtype::f64},
                                           {"torch.FloatStorage", Dtype::f32},
                                           {"torch.HalfStorage", Dtype::f16},
                                           {"torch.BFloat16Storage", Dtype::bf16},
                                           {"torch.LongStorage", Dtype::i64},
                                           {"torch.IntStorage", Dtype::i32},
                                           {"torch.ShortStorage", Dtype::i16},
                                           {"torch.CharStorage", Dtype::i8},
                                           {"torch.ByteStorage", Dtype::u8},
                                           {"torch.BoolStorage", Dtype::boolean},
                                           {"torch.ComplexFloatStorage", Dtype::c64}}};

constexpr std::array<Named, 19> kDtypes{{{"torch.float64", Dtype::f64},
                                         {"torch.float32", Dtype::f32},
                                         {"torch.float16", Dtype::f16},
                                         {"torch.bfloat16", Dtype::bf16},
                                         {"torch.int64", Dtype::i64},
                                         {"torch.int32", Dtype::i32},
                                         {"torch.int16", Dtype::i16},
                                         {"torch.int8", Dtype::i8},
                                         {"torch.uint64", Dtype::u64},
                                         {"torch.uint32", Dtype::u32},
                                         {"torch.uint16", Dtype::u16},
                                         {"torch.uint8", Dtype::u8},
                                         {"torch.bool", Dtype::boolean},
                                         {"torch.complex64", Dtype::c64},
                                         {"torch.float8_e4m3fn", Dtype::f8_e4m3},
                                         {"torch.float8_e5m2", Dtype::f8_e5m2},
                                         {"torch.float8_e8m0fnu", Dtype::f8_e8m0},
                                         {"torch.float8_e4m3fnuz", Dtype::f8_e4m3fnuz},
                                         {"torch.float8_e5m2fnuz", Dtype::f8_e5m2fnuz}}};

template <std::size_t N>
std::optional<Dtype> dtype_of(const std::array<Named, N>& table, const Global& global) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Named& row) { return global.is(row.name); });
  return found == table.end() ? std::nullopt : std::optional(found->dtype);
}

// A storage as a persistent id describes it: ("storage", class, key, device, count of elements).
struct Storage {
  std::string key;
  std::optional<Dtype> dtype;  // none: counted in bytes, the dtype comes with the tensor
  std::int64_t count;
  std::string_view inside;  // its bytes, where they stand in the pickle
};

// Old files describe it with a sixth item (of views, which are no more). `fail` throws.
template <class Fail>
Storage described_storage(Ref value, const Fail& fail) {
  const auto* persistent = value->as<PersistentId>();
  const auto* id = persistent == nullptr ? nullptr : persistent->id->as<Tuple>();
  if (id == nullptr || (id->items.size() != 5 && !(id->items.size() == 6 && id->items[5]->as<pickle::None>())))
    fail("a tensor without a storage that torch.save writes");
  const auto* kind = id->items[0]->as<std::string_view>();
  const auto* type = id->items[1]->as<Global>();
  const auto* key = id->items[2]->as<std::string_view>();
  const auto* count = id->items[4]->as<std::int64_t>();
  if (!kind || *kind != "storage" || !type || !key || !count || *count < 0)
    fail("a tensor's storage is described in an unknown way");
  const auto dtype = dtype_of(kStorages, *type);
  if (!dtype && !type->is("torch.storage.UntypedStorage") && !type->is("torch.UntypedStorage"))
    fail("a tensor over " + type->text().substr(0, kShownPlace) + ", which is not known here");
  return {std::string(*key), dtype, *count, {}};
}

std::uint64_t element_count(const TorchTensor& tensor) {
  std::uint64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

// Gathers strided elements in row-major order.
std::vector<std::byte> gather(const TorchTensor& tensor, const std::vector<std::byte>& storage, std::uint64_t count) {
  const std::size_t each = dtype_bits(tensor.dtype) / 8;
  std::vector<std::byte> result(count * each);
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t at = tensor.storage_offset;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(result.data() + i * each, storage.data() + static_cast<std::uint64_t>(at) * each, each);
    for (std::size_t d = index.size(); d-- > 0;) {
      at += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      at -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
  return result;
}

bool row_major(const TorchTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

class Flattener {
 public:
  explicit Flattener(std::string_view where) : where_(where) {}

  TorchTree run(Ref root) {
    visit(root, "", 0);
    return std::move(tree_);
  }

 private:
  [[noreturn]] void fail(const std::string& place, const std::string& what) const {
    const std::string shown = place.size() <= kShownPlace ? place : place.substr(0, kShownPlace) + "…";
    throw Error(ErrorKind::checkpoint, where_, (place.empty() ? "the root" : "'" + shown + "'") + ": " + what);
  }

  // A pickle may name one value, and one long text, many times over; here each time is another copy.
  void spend(const std::string& place, std::size_t bytes) {
    if (bytes > left_) fail(place, "what the file holds takes over 64 MiB of memory, tensors not counted");
    left_ -= bytes;
  }

  void visit(Ref value, const std::string& place, int depth) {
    if (depth > limits::kPickleDepth) fail(place, "values nest deeper than 100");
    spend(place, kVisitCost + place.size());
    const auto inside = [&](const std::string& key) { return place.empty() ? key : place + "." + key; };
    if (const auto* dict = value->as<Dict>()) {
      for (const auto& [key, inner] : dict->items) visit(inner, inside(key_text(key, place)), depth + 1);
    } else if (const auto* list = value->as<List>()) {
      visit_items(list->items, place, depth);
    } else if (const auto* tuple = value->as<Tuple>()) {
      visit_items(tuple->items, place, depth);
    } else if (const auto* call = value->as<Call>()) {
      visit_call(*call, place, depth);
    } else if (const auto* global = value->as<Global>()) {
      add_opaque(place, *global);
    } else if (value->as<PersistentId>()) {
      add_opaque(place, Global{"torch", "storage"});
    } else {
      visit_scalar(value, place);
    }
  }

  // Numbers and texts of a list (the order of a run's samples, a million of them) are not kept.
  void visit_items(const std::vector<Ref>& items, const std::string& place, int depth) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (is_plain(items[i])) {
        spend(place, kVisitCost);
      } else {
        visit(items[i], (place.empty() ? "" : place + ".") + std::to_string(i), depth + 1);
      }
    }
  }

  static bool is_plain(Ref value) {
    return value->as<pickle::None>() || value->as<bool>() || value->as<std::int64_t>() || value->as<double>() ||
           value->as<std::string_view>() || value->as<pickle::Bytes>();
  }

  std::string key_text(Ref key, const std::string& place) const {
    if (const auto* text = key->as<std::string_view>()) return std::string(*text);
    if (const auto* integer = key->as<std::int64_t>()) return std::to_string(*integer);
    if (const auto* boolean = key->as<bool>()) return *boolean ? "True" : "False";
    fail(place, "a key is neither a string nor an integer");
  }

  void visit_scalar(Ref value, const std::string& place) {
    spend(place, kValueCost + 2 * place.size());
    if (const auto* boolean = value->as<bool>()) tree_.scalars.emplace(place, *boolean);
    if (const auto* integer = value->as<std::int64_t>()) tree_.scalars.emplace(place, *integer);
    if (const auto* number = value->as<double>()) tree_.scalars.emplace(place, *number);
    if (const auto* text = value->as<std::string_view>()) {
      spend(place, text->size());
      tree_.scalars.emplace(place, std::string(*text));
    }
  }

  void add_opaque(const std::string& place, const Global& global) {
    spend(place, kValueCost + 2 * place.size() + global.module.size() + global.name.size());
    tree_.opaque.push_back({place, global.text()});
  }

  void visit_call(const Call& call, const std::string& place, int depth) {
    const Global& function = *call.function;
    if (function.is("torch._utils._rebuild_tensor") || function.is("torch._utils._rebuild_tensor_v2")) {
      add_tensor(call, place, std::nullopt);
    } else if (function.is("torch._utils._rebuild_tensor_v3")) {
      const Ref dtype = argument(call, 6, place);
      const auto* global = dtype->as<Global>();
      const auto known = global == nullptr ? std::nullopt : dtype_of(kDtypes, *global);
      if (!known) fail(place, "a tensor of the unknown dtype " + (global ? shown(*global) : std::string("?")));
      add_tensor(call, place, known);
    } else if (function.is("torch._utils._rebuild_parameter") ||
               function.is("torch._utils._rebuild_parameter_with_state")) {
      visit(argument(call, 0, place), place, depth + 1);
    } else {
      add_opaque(place, function);
      // The arguments that a training script was started with: plain values, worth showing.
      if (function.is("argparse.Namespace") && call.state != nullptr && call.state->as<Dict>())
        visit(call.state, place, depth + 1);
    }
  }

  Ref argument(const Call& call, std::size_t index, const std::string& place) const {
    if (index >= call.arguments->items.size()) fail(place, shown(*call.function) + " has too few arguments");
    return call.arguments->items[index];
  }

  static std::string shown(const Global& global) { return global.text().substr(0, kShownPlace); }

  Storage storage_of(Ref value, const std::string& place) const {
    if (const auto* call = value->as<Call>(); call && call->function->is("torch.storage._load_from_bytes")) {
      const auto* bytes = argument(*call, 0, place)->as<pickle::Bytes>();
      if (bytes == nullptr) fail(place, "a storage without bytes");
      const auto old = read_old_storage(bytes->bytes, where_);
      return {"pickled " + std::to_string(tree_.storages.size()), old.dtype, old.count, old.bytes};
    }
    return described_storage(value, [&](const std::string& what) { fail(place, what); });
  }

  std::vector<std::int64_t> sizes(Ref value, const std::string& place, const char* what) const {
    const auto* tuple = value->as<Tuple>();
    const auto* size = value->as<Call>();  // torch.Size((…))
    if (size != nullptr && size->function->is("torch.Size") && size->arguments->items.size() == 1)
      tuple = size->arguments->items[0]->as<Tuple>();
    if (tuple == nullptr || tuple->items.size() > limits::kDims)
      fail(place, std::string("its ") + what + " is no tuple of at most 64");
    std::vector<std::int64_t> result;
    for (const Ref item : tuple->items) {
      const auto* number = item->as<std::int64_t>();
      if (number == nullptr || *number < 0) fail(place, std::string("its ") + what + " has what is no whole number");
      result.push_back(*number);
    }
    return result;
  }

  void add_tensor(const Call& call, const std::string& place, std::optional<Dtype> given) {
    const Storage storage = storage_of(argument(call, 0, place), place);
    spend(place, kTensorCost + 2 * place.size() + 2 * storage.key.size());
    const std::optional<Dtype> dtype = given ? given : storage.dtype;
    if (!dtype) fail(place, "a tensor without a dtype");
    const auto* offset = argument(call, 1, place)->as<std::int64_t>();
    if (offset == nullptr || *offset < 0) fail(place, "its place in the storage is no whole number");
    TorchTensor tensor{place,
                       *dtype,
                       sizes(argument(call, 2, place), place, "shape"),
                       sizes(argument(call, 3, place), place, "strides"),
                       *offset,
                       storage.key};
    spend(place, sizeof(std::int64_t) * (tensor.shape.size() + tensor.strides.size()));
    const std::uint64_t bytes = storage_bytes(storage, place);
    check_inside(tensor, bytes);
    if (!names_.insert(place).second) fail(place, "two tensors have this name");
    const auto [known, fresh] = tree_.storages.emplace(storage.key, TorchStorage{bytes, storage.inside});
    if (!fresh && known->second.bytes != bytes) fail(place, "storage " + storage.key + " has two sizes");
    tree_.tensors.push_back(std::move(tensor));
  }

  std::uint64_t storage_bytes(const Storage& storage, const std::string& place) const {
    std::uint64_t bytes = static_cast<std::uint64_t>(storage.count);
    const std::uint64_t each = storage.dtype ? dtype_bits(*storage.dtype) / 8 : 1;
    if (__builtin_mul_overflow(bytes, each, &bytes)) fail(place, "its storage's size does not fit 64 bits");
    return bytes;
  }

  void check_inside(const TorchTensor& tensor, std::uint64_t storage_bytes) const {
    if (tensor.shape.size() != tensor.strides.size()) fail(tensor.name, "it has not as many strides as dims");
    const auto each = static_cast<std::int64_t>(dtype_bits(tensor.dtype) / 8);
    std::int64_t count = 1, last = tensor.storage_offset, end = 0;
    bool overflow = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      overflow |= __builtin_mul_overflow(count, tensor.shape[i], &count);
      std::int64_t reach = 0;
      overflow |= __builtin_mul_overflow(std::max<std::int64_t>(tensor.shape[i] - 1, 0), tensor.strides[i], &reach);
      overflow |= __builtin_add_overflow(last, reach, &last);
    }
    overflow |= __builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, each, &end);
    std::int64_t bytes = 0;
    overflow |= __builtin_mul_overflow(count, each, &bytes);
    if (overflow) fail(tensor.name, "its size does not fit 63 bits");
    if (count > 0 && static_cast<std::uint64_t>(end) > storage_bytes)
      fail(tensor.name, "it reaches outside its storage");
  }

  std::string_view where_;
  TorchTree tree_;
  std::unordered_set<std::string> names_;
  std::size_t left_ = limits::kPickleTreeBytes;
};

}  // namespace

TorchTree flatten_torch(Ref root, std::string_view where) { return Flattener(where).run(root); }

std::vector<std::byte> elements_of(const TorchTensor& tensor, std::vector<std::byte> storage, std::string_view where) {
  const std::uint64_t count = element_count(tensor), bytes = count * (dtype_bits(tensor.dtype) / 8);
  if (count == 0) return {};
  if (bytes > std::max<std::uint64_t>(storage.size(), limits::kExpandedBytes))
    throw Error(ErrorKind::checkpoint, where,
                "tensor '" + tensor.name + "' repeats its storage of " + std::to_string(storage.size()) + " bytes to " +
                    std::to_string(bytes) + "; up to 64 MiB are made so",
                "save it whole, with .contiguous()");
  if (row_major(tensor) && bytes == storage.size()) return storage;
  return gather(tensor, storage, count);
}

OldStorage read_old_storage(std::string_view file, std::string_view where) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::checkpoint, where, "of a storage that was pickled by itself: " + what,
                "save the tensor with torch.save, or as a NumPy array");
  };
  pickle::Arena arena;
  const auto next = [&] {
    std::size_t used = 0;
    const Ref value = pickle::unpickle(file, where, arena, &used);
    file.remove_prefix(used);
    return value;
  };
  next();  // the magic number
  const auto* version = next()->as<std::int64_t>();
  if (version == nullptr || *version != 1001) fail("its version is unknown");
  if (const auto* system = next()->as<Dict>())
    for (const auto& [key, value] : system->items)
      if (const auto* name = key->as<std::string_view>(); name && *name == "little_endian")
        if (const auto* little = value->as<bool>(); little && !*little) fail("its numbers are big-endian");
  const auto described = described_storage(next(), fail);
  const auto* keys = next()->as<List>();
  const auto* key = keys == nullptr || keys->items.size() != 1 ? nullptr : keys->items[0]->as<std::string_view>();
  if (key == nullptr || *key != described.key) fail("it is not one storage alone");
  const std::uint64_t each = described.dtype ? dtype_bits(*described.dtype) / 8 : 1;
  std::uint64_t count = 0, bytes = 0;
  if (file.size() < sizeof count) fail("it is cut off");
  std::memcpy(&count, file.data(), sizeof count);  // little endian, as this machine is
  file.remove_prefix(sizeof count);
  if (count != static_cast<std::uint64_t>(described.count)) fail("it has two sizes");
  if (__builtin_mul_overflow(count, each, &bytes) || bytes != file.size())
    fail("it is cut off, or goes on behind its end");
  return {described.dtype, described.count, file};
}

}  // namespace ditto::formats
