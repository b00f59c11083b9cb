#include <ditto/exchange/foreign.h>

namespace ditto {

namespace {

int64_t within(int64_t number, int64_t most, const std::string& file, const std::string& what) {
  if (number >= 1 && number <= most) return number;
  throw Error(ErrorKind::checkpoint, file, what + " is " + std::to_string(number),
              "expected 1 to " + std::to_string(most));
}

const OptionValue& said(const ForeignShapes& shapes, const std::string& key) {
  if (shapes.config_file.empty())
    throw Error(ErrorKind::checkpoint, shapes.file, "has no config.json beside it, which alone says \"" + key + "\"",
                "put the model's config.json into the file's folder");
  const auto found = shapes.config.find(key);
  if (found == shapes.config.end())
    throw Error(ErrorKind::checkpoint, shapes.config_file, "has no \"" + key + "\"",
                "take the config.json of this model");
  return found->second;
}

bool is_same(const OptionValue& a, const OptionValue& b) {
  const auto real = [](const OptionValue& value) -> OptionValue {
    if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
    return value;
  };
  return real(a) == real(b);
}

}  // namespace

int64_t ForeignShapes::size(const std::string& tensor, size_t dim, int64_t most) const {
  const auto found = tensors.find(tensor);
  if (found == tensors.end())
    throw Error(ErrorKind::checkpoint, file,
                "has no tensor '" + tensor + "', as weights in the format " + format + " do",
                "choose another format, or another file");
  if (dim >= found->second.size())
    throw Error(ErrorKind::checkpoint, file,
                "tensor '" + tensor + "' has " + std::to_string(found->second.size()) + " dims, expected at least " +
                    std::to_string(dim + 1),
                "choose another file");
  return within(found->second[dim], most, file, "dim " + std::to_string(dim) + " of tensor '" + tensor + "'");
}

int64_t ForeignShapes::count(const std::string& before, const std::string& after, int64_t most) const {
  int64_t found = 0;
  while (has(before + std::to_string(found) + after)) ++found;
  return within(found, most, file, "the number of tensors '" + before + "N" + after + "'");
}

int64_t ForeignShapes::number(const std::string& key, int64_t most) const {
  const auto& value = said(*this, key);
  const auto* number = std::get_if<int64_t>(&value);
  if (!number)
    throw Error(ErrorKind::checkpoint, config_file, "\"" + key + "\" is " + to_text(value), "expected an integer");
  return within(*number, most, config_file, "\"" + key + "\"");
}

std::vector<int64_t> ForeignShapes::numbers(const std::string& key, size_t count, int64_t most) const {
  const auto& value = said(*this, key);
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (!list || list->size() != count)
    throw Error(ErrorKind::checkpoint, config_file, "\"" + key + "\" is " + to_text(value),
                "expected a list of " + std::to_string(count) + " integers");
  for (const int64_t number : *list) within(number, most, config_file, "a number of \"" + key + "\"");
  return *list;
}

void ForeignShapes::expect(const std::string& key, const OptionValue& expected) const {
  const auto found = config.find(key);
  if (found == config.end() || is_same(found->second, expected)) return;
  throw Error(
      ErrorKind::checkpoint, config_file,
      "\"" + key + "\" is " + to_text(found->second) + ", and the model that it would become has " + to_text(expected),
      "choose another model, or another file");
}

}  // namespace ditto
