// What names of classes, folders and files say beyond naming: numbers, parts of a set, and what is called by them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ditto::formats {

// The number that a reader takes a name for: "1", "02", "-3", "1.0". Nothing: it is a word.
std::optional<double> number_of_name(std::string_view name);

// Two names for what one and the same number stands for, by what two parties say.
struct NamesApart {
  std::size_t number;
  std::string name, other;
  bool is_elsewhere;  // one of them names another number in the other list: whoever asks for it gets something else
};
// The first number that the lists call otherwise, upper and lower case, "_", "-" and blanks being alike; one whose name
// is elsewhere before all others. Nothing: as far as both go they agree.
std::optional<NamesApart> names_apart(const std::vector<std::string>& names, const std::vector<std::string>& others);
bool is_same_name(std::string_view name, std::string_view other);  // in this sense

// "1 picture", "3 pictures".
std::string counted(std::size_t count, std::string_view what);

// What a folder or file of a set is by its name, "train", "val2017", "imagenet-train-000000.tar", "TestImages": to
// learn from, or held out.
enum class SetPart { none, learned, held_out };
SetPart part_of_set(std::string_view name);

// Paths of a list by the folders that they are in, "train/cat/1.png": whether some are of each part.
class PartsSeen {
 public:
  void add(std::string_view path);
  // "\"val/1.png\" is held out by its folder, and learned from as \"train/1.png\" is"; empty: not of both.
  std::string sentence() const;

 private:
  std::string last_, learned_, held_out_;
};

// A file is the same under all of its names: relative ones, and those of links, hard ones too. Of what is no file, an
// address say, it is the name in its shortest form.
std::string identity_of(const std::string& path);

}  // namespace ditto::formats
