// Options of a plugin, as a recipe's section gives them: declared and read in one go.
//
//   struct Options {
//     int64_t depth = 12;
//     void read(ditto::OptionReader& option) { option("depth", depth, "number of transformer blocks").at_least(1); }
//   };
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <ditto/error.h>

namespace ditto {

using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                 std::vector<std::string>>;

template <class T, class... Ts>
constexpr bool is_one_of(const std::variant<Ts...>*) {
  return (std::is_same_v<T, Ts> || ...);
}
// What an option can be: recipes have no others.
template <class T>
inline constexpr bool kIsOption = is_one_of<T>(static_cast<const OptionValue*>(nullptr));

// One key of a section, with its place ("run.toml:14:9") for messages.
struct GivenOption {
  OptionValue value;
  std::string where;
};

// One section of a recipe as the host hands it over, without the key "plugin".
struct OptionMap {
  std::string section;  // "model", "encoder.image"
  std::string where;    // place of the section itself
  std::map<std::string, GivenOption> given;
};

// What another value of an option changes in a run that goes on with it, and so what a resume makes of it.
enum class Effect {
  learning,  // what is learned: refused unless allowed
  course,    // the training from here on, as one may mean to: learning rate, optimizer, steps
  bits,      // the same training within rounding: threads, kernels, cuts of a sample or a layer, precision
  speed,     // who computes what, and when: the same bits where the micro-batches stay the same
  nothing,   // of the training: paths, logging, how often to save, what is sampled
};
DITTO_API const char* name(Effect effect);  // "learning"

// What a plugin declared, for `ditto plugins show`, `ditto config show` and run.toml.
struct OptionInfo {
  std::string name, help;
  OptionValue fallback;  // the default
  OptionValue value;     // what it is now: given, or the default
  std::string range;     // "1 … 64", "one of: a, b"; empty: any
  bool given = false;
  Effect effect = Effect::learning;
  bool is_place = false;        // names a place in the file system, which each machine may have elsewhere
  bool noted_if_given = false;  // see Declared
};

class OptionReader;

// What a declaration returns, to narrow what is allowed (each such call checks the value and throws Error(config) with
// its place), and to say what the option changes where that is not what its section's others do.
template <class T>
class Declared {
 public:
  Declared(OptionReader& reader, size_t index, const T& value) : reader_(reader), index_(index), value_(value) {}
  Declared& at_least(T low) { return between(low, std::numeric_limits<T>::max()); }
  Declared& above(T low);                           // value > low
  Declared& between(T low, T high);                 // low <= value <= high
  Declared& one_of(const std::vector<T>& allowed);  // for names: the nearest one is suggested
  Declared& changes(Effect effect);
  Declared& place();  // a path: what lies there is compared by content
  // run.toml, checkpoints and receipts have it only where the recipe gives it. So an option is added later: runs of
  // before, which know nothing of it, are gone on with, and do what they did with its default.
  Declared& noted_if_given();

 private:
  OptionReader& reader_;
  size_t index_;
  const T& value_;
};

// Walks over an Options struct. The host makes one for each component; with nothing given it only declares.
class DITTO_API OptionReader {
 public:
  // `effect`: what options change that do not say.
  explicit OptionReader(const OptionMap& given, Effect effect = Effect::learning);
  ~OptionReader();
  OptionReader(const OptionReader&) = delete;
  OptionReader& operator=(const OptionReader&) = delete;

  // Declares `name`, whose default is what `value` holds now, and sets `value` if the recipe gives it. An integer is
  // taken for a real number; every other mismatch of types throws Error(config). What only the plugin's author can have
  // done is Error(plugin): a name that is declared twice, a default outside of what is allowed.
  template <class T>
  auto operator()(const char* name, T& value, const char* help);  // -> Declared<T>

  // Throws Error(config) at the place of option `name`: for conditions that involve several options.
  [[noreturn]] void reject(std::string_view name, std::string_view what, std::string_view remedy) const;

  // Options that act only where `applies`: elsewhere another value than the default, which would change nothing, is
  // Error(config) at its place. `why`: "is of weight = \"min_snr\"". Called once they are declared.
  void only_if(bool applies, const std::vector<std::string>& names, std::string_view why) const;

  // Refuses an option of earlier recipes (with this value; empty: with any) that is another plugin's today:
  // Error(config) at its place. `plugin`: whose it was; `now`: whose it is.
  void replaced_by(std::string_view now, std::string_view plugin, std::string_view name,
                   std::string_view value = {}) const;

  // Throws Error(config) for the first key that was given but never declared, naming the nearest declared one. The host
  // calls it after Options::read.
  void finish() const;

  const std::vector<OptionInfo>& declared() const { return declared_; }
  const std::string& section() const { return given_.section; }

 private:
  template <class T>
  friend class Declared;
  // Records the option; returns the given value, already converted to the default's type, or nullptr.
  const OptionValue* declare(const char* name, OptionValue fallback, const char* help);
  void set_range(size_t index, std::string range);
  [[noreturn]] void out_of_range(size_t index, std::string_view expected) const;

  OptionMap given_;
  Effect effect_;
  std::vector<OptionInfo> declared_;
};

// How a value is written in messages and in TOML.
DITTO_API std::string to_text(const OptionValue& value);
DITTO_API const char* type_name(const OptionValue& value);
// The candidate nearest to `name` by edit distance, or empty if none is near.
DITTO_API std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

template <class T>
auto OptionReader::operator()(const char* name, T& value, const char* help) {
  static_assert(
      kIsOption<T>,
      "an option is a bool, int64_t, double or std::string, or a std::vector of int64_t, double or std::string: "
      "declare an int as int64_t, a float as double");
  if constexpr (kIsOption<T>) {
    if (const OptionValue* found = declare(name, OptionValue(value), help)) value = std::get<T>(*found);
    return Declared<T>(*this, declared_.size() - 1, value);
  } else {  // so that the compiler says the sentence above and no more
    using Near = std::conditional_t<std::is_integral_v<T>, int64_t,
                                    std::conditional_t<std::is_floating_point_v<T>, double, std::string>>;
    return Declared<Near>(*this, 0, {});
  }
}

template <class T>
Declared<T>& Declared<T>::changes(Effect effect) {
  reader_.declared_[index_].effect = effect;
  return *this;
}

template <class T>
Declared<T>& Declared<T>::place() {
  reader_.declared_[index_].is_place = true;
  return *this;
}

template <class T>
Declared<T>& Declared<T>::noted_if_given() {
  reader_.declared_[index_].noted_if_given = true;
  return *this;
}

template <class T>
Declared<T>& Declared<T>::between(T low, T high) {
  const bool open = high == std::numeric_limits<T>::max();
  const std::string range = open ? "at least " + to_text(low) : to_text(low) + " to " + to_text(high);
  reader_.set_range(index_, range);
  if (!(value_ >= low && value_ <= high)) reader_.out_of_range(index_, range);
  return *this;
}

template <class T>
Declared<T>& Declared<T>::above(T low) {
  const std::string range = "above " + to_text(low);
  reader_.set_range(index_, range);
  if (!(value_ > low)) reader_.out_of_range(index_, range);
  return *this;
}

template <class T>
Declared<T>& Declared<T>::one_of(const std::vector<T>& allowed) {
  std::string range = "one of:";
  bool found = false;
  for (const T& one : allowed) {
    range += (range.back() == ':' ? " " : ", ") + to_text(one);
    found = found || one == value_;
  }
  reader_.set_range(index_, range);
  if (!found) reader_.out_of_range(index_, range);
  return *this;
}

// For components without options.
struct NoOptions {
  void read(OptionReader&) {}
};

}  // namespace ditto
