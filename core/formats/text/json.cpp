#include "core/formats/text/json.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/formats/limits.h"

namespace ditto::formats {

namespace {

using json = nlohmann::json;

// What a part of the tree takes in memory, allocation and growth included; rounded up.
constexpr std::size_t kValueCost = 48, kKeyCost = 64, kContainerCost = 64;

// Builds the tree from the parser's events. (The library's own parser with a callback does the same in time that grows
// with the square of the keys.)
class Builder final : public nlohmann::json_sax<json> {
 public:
  Builder(std::string_view where, ErrorKind kind, std::size_t budget) : where_(where), kind_(kind), left_(budget) {}

  json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override {
    spend(value.size());
    return add(std::move(value));
  }
  bool binary(binary_t&) override { fail("this is not JSON: it has binary data"); }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) fail("the key '" + name.substr(0, 120) + "' is there twice in one object");
    spend(kKeyCost + name.size());
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail("this is not JSON: " + json_reason(error.what()));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(kind_, where_, what); }

  void spend(std::size_t bytes) {
    if (bytes > left_)
      fail("this JSON takes more memory than " + std::to_string(limits::kJsonTimesText) +
           " times its length and 32 MiB, as no file of ours does");
    left_ -= bytes;
  }

  json* place(json value) {
    spend(kValueCost);
    if (open_.empty()) return &(root = std::move(value));
    json& into = *open_.back();
    if (into.is_object()) return &(into[key_] = std::move(value));
    into.push_back(std::move(value));
    return &into.back();
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() == limits::kJsonDepth) fail("this JSON nests deeper than 128");
    spend(kContainerCost);
    open_.push_back(place(std::move(container)));  // stays where it is: nothing is added beside it before it closes
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  ErrorKind kind_;
  std::size_t left_;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where, ErrorKind kind) {
  // The library ends a text at a NUL byte and takes what stands before it.
  if (text.find('\0') != std::string_view::npos) throw Error(kind, where, "this is not JSON: it has a NUL byte");
  Builder builder(where, kind, limits::kJsonFreeBytes + limits::kJsonTimesText * text.size());
  json::sax_parse(text, &builder);
  return std::move(builder.root);
}

std::string json_reason(std::string_view what) {
  // "[json.exception.parse_error.101] parse error at line 1, …", "[json.exception.type_error.302] type must be …"
  constexpr std::string_view kBegin = "[json.exception.", kParse = "parse error at ";
  const auto end = what.find("] ");
  if (!what.starts_with(kBegin) || end == std::string_view::npos) return std::string(what);
  what.remove_prefix(end + 2);
  if (what.starts_with(kParse)) what.remove_prefix(kParse.size());
  return std::string(what);
}

std::string plain_reason(const std::exception& error) {
  const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (!file) return json_reason(error.what());
  return (file->path1().empty() ? "the working folder" : file->path1().string()) +
         " cannot be used: " + file->code().message();
}

}  // namespace ditto::formats
