#include "core/formats/tensor/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include <ditto/text.h>

#include "core/formats/limits.h"
#include "core/formats/text/json.h"

namespace ditto::formats {

namespace {

using json = nlohmann::json;

bool control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

std::string shown(std::string_view name) { return "tensor '" + ditto::shown(name) + "'"; }

// Takes the parser's events one at a time, so that a hostile header costs no more memory than its tensors.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  HeaderHandler(std::string_view where, ErrorKind kind) : where_(where), kind_(kind) {}

  Header header;

  bool null() override {
    if (ignoring()) return true;
    if (place_ == Place::metadata_value) {  // "__metadata__": null
      place_ = Place::root;
      return true;
    }
    return unexpected("null");
  }
  bool boolean(bool) override { return ignoring() || unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return ignoring() || unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return ignoring() || unexpected("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (ignoring()) return true;
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail("the size " + std::to_string(value) + " in its shape does not fit 63 bits");
      if (tensor_.shape.size() == limits::kDims) fail("it has more than 64 dims");
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_.size() == 2) fail("data_offsets has more than two numbers");
      offsets_.push_back(value);
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (ignoring()) return true;
    if (place_ == Place::metadata) {
      if (header.metadata.size() == limits::kHeaderNotes) fail_file("__metadata__ has over 65,536 entries");
      header.metadata[metadata_key_] = value;
      return true;
    }
    if (place_ == Place::tensor && field_ == "dtype") {
      dtype_ = dtype_from_name(value);
      if (!dtype_) fail("its dtype '" + value.substr(0, 40) + "' is unknown");
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t) override {
    deeper();
    if (ignoring()) return true;
    switch (place_) {
      case Place::before: place_ = Place::root; return true;
      case Place::metadata_value: place_ = Place::metadata; return true;
      case Place::tensor_value: place_ = Place::tensor; return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (depth_ > 2) return true;  // inside a field that is ignored
    if (place_ == Place::metadata) {
      metadata_key_ = name;
      if (header.metadata.contains(name)) fail_file("the key '" + name.substr(0, 120) + "' is twice in __metadata__");
      return true;
    }
    if (place_ == Place::tensor) {
      field_ = name;
      if (!fields_.insert(name).second) fail("its field '" + name.substr(0, 40) + "' is there twice");
      return true;
    }
    return root_key(name);
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 0) {
      place_ = Place::after;
    } else if (depth_ == 1) {
      if (place_ == Place::tensor) finish_tensor();
      place_ = Place::root;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    deeper();
    if (place_ == Place::tensor && depth_ == 3 && field_ == "shape") {
      place_ = Place::shape;
      has_shape_ = true;
      return true;
    }
    if (place_ == Place::tensor && depth_ == 3 && field_ == "data_offsets") {
      place_ = Place::offsets;
      return true;
    }
    if (ignoring()) return true;
    return unexpected("a list");
  }

  bool end_array() override {
    --depth_;
    if (depth_ == 2 && (place_ == Place::shape || place_ == Place::offsets)) place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fail_file("the header is not JSON, at its byte " + std::to_string(position) + ": " + json_reason(error.what()));
  }

 private:
  enum class Place { before, root, metadata_value, metadata, tensor_value, tensor, shape, offsets, after };

  [[noreturn]] void fail_file(const std::string& what) const { throw Error(kind_, where_, what); }
  [[noreturn]] void fail(const std::string& what) const { fail_file(shown(tensor_.name) + ": " + what); }

  bool unexpected(const std::string& found) const {
    switch (place_) {
      case Place::before: fail_file("the header is " + found + "; an object of tensors is expected");
      case Place::metadata_value: fail_file("__metadata__ is " + found + "; an object of strings is expected");
      case Place::metadata:
        fail_file("__metadata__ has " + found + " at '" + metadata_key_.substr(0, 120) + "'; a string is expected");
      case Place::tensor: fail("its field '" + field_ + "' is " + found);
      case Place::shape: fail("its shape has " + found + "; whole numbers are expected");
      case Place::offsets: fail("its data_offsets have " + found + "; whole numbers are expected");
      default: fail(found + " stands where an object with dtype, shape and data_offsets is expected");
    }
  }

  void deeper() {
    if (++depth_ > limits::kJsonDepth) fail_file("the header nests deeper than 128");
  }

  // In the value of a tensor's field that this reader does not know.
  bool ignoring() const {
    return place_ == Place::tensor && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets";
  }

  bool root_key(const std::string& name) {
    if (names_.size() > limits::kHeaderTensors) fail_file("the header names over 250,000 tensors");
    if (!names_.insert(name).second) fail_file(shown(name) + " is there twice");
    if (name == "__metadata__") {
      place_ = Place::metadata_value;
      return true;
    }
    tensor_ = HeaderTensor{name, Dtype::boolean, {}, 0, 0};
    if (std::any_of(name.begin(), name.end(), control)) fail("its name has a control character");
    fields_.clear();
    field_.clear();
    offsets_.clear();
    dtype_.reset();
    has_shape_ = false;
    place_ = Place::tensor_value;
    return true;
  }

  void finish_tensor() {
    if (!dtype_) fail("it has no dtype");
    if (!has_shape_) fail("it has no shape");
    if (offsets_.size() != 2) fail("data_offsets must be two numbers, begin and end");
    tensor_.dtype = *dtype_;
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    if (tensor_.begin > tensor_.end) fail("its data ends before it begins");
    const std::string place = std::string(where_) + ": " + shown(tensor_.name);
    const std::uint64_t needed = tensor_bytes(tensor_.dtype, tensor_.shape, place, kind_);
    if (needed != tensor_.end - tensor_.begin)
      fail("its data has " + std::to_string(tensor_.end - tensor_.begin) + " bytes; its dtype and shape need " +
           std::to_string(needed));
    header.tensors.push_back(std::move(tensor_));
  }

  std::string_view where_;
  ErrorKind kind_;
  Place place_ = Place::before;
  int depth_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
  std::string metadata_key_;
  std::string field_;
  HeaderTensor tensor_{};
  std::optional<Dtype> dtype_;
  bool has_shape_ = false;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

Header parse_safetensors_header(std::string_view text, std::string_view where, ErrorKind kind) {
  // The JSON library skips a byte order mark and stops at a NUL byte.
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{')
    throw Error(kind, where, "the header does not start with '{'", "this is not a safetensors file, or it is damaged");
  if (text.find('\0') != std::string_view::npos) throw Error(kind, where, "the header has a NUL byte");
  HeaderHandler handler(where, kind);
  json::sax_parse(text, &handler);
  return std::move(handler.header);
}

std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape, std::string_view where,
                           ErrorKind kind) {
  if (shape.size() > limits::kDims) throw Error(kind, where, "it has more than 64 dims");
  std::uint64_t bits = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) throw Error(kind, where, "a size in its shape is negative");
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits))
      throw Error(kind, where, "the product of its shape does not fit 64 bits");
  }
  if (__builtin_mul_overflow(bits, std::uint64_t{dtype_bits(dtype)}, &bits))
    throw Error(kind, where, "its size in bits does not fit 64 bits");
  if (bits % 8 != 0) throw Error(kind, where, "its elements do not fill whole bytes");
  return bits / 8;
}

}  // namespace ditto::formats
