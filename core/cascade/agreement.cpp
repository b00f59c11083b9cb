#include "core/cascade/agreement.h"

#include <algorithm>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto {

namespace {

std::string by(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t side : shape) text += (text.empty() ? "" : " x ") + (side < 0 ? "any" : std::to_string(side));
  return text;
}

// As far as both are known.
bool fits(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; });
}

class Agreement {
 public:
  Agreement(const Cascade& cascade, const std::vector<StageTensors>& stages) : cascade_(cascade), stages_(stages) {}

  void require() const {
    refuse_passed_first();
    for (size_t i = 1; i < stages_.size(); ++i) {
      require_passed(i);
      require_asked(i);
      for (const auto& [text, encoder] : stages_[i].text_encoders) require_same_encoders(i, text);
    }
  }

 private:
  [[noreturn]] void refuse(size_t stage, const std::string& found, const std::string& remedy) const {
    throw Error(ErrorKind::config, cascade_.stages[stage].recipe, name_of_stage(cascade_, stage) + ", " + found,
                remedy);
  }
  const std::string& name(size_t stage) const { return cascade_.stages[stage].name; }

  void refuse_passed_first() const {
    if (!stages_.front().passed.empty())
      refuse(0, fmt::format("takes \"{}\", and no stage is before it to pass it", cascade_.passes),
             "put the stage that makes pictures of nothing first, or choose what is passed by cascade.passes");
  }

  void require_passed(size_t i) const {
    const auto& own = stages_[i];
    const auto& before = stages_[i - 1].picture;
    if (own.passed.empty() && own.makes_passed)
      refuse(i, fmt::format("makes \"{}\" of its data, and neither its model nor an encoder takes it", cascade_.passes),
             "add [encoder.low] with plugin = \"noise_condition\", or a model that takes it");
    if (own.passed.empty())
      refuse(i, fmt::format("does not take \"{}\", which the cascade passes", cascade_.passes),
             "let an encoder make it of pictures, as \"pyramid\" does, or name what it takes in cascade.passes");
    if (fits(own.passed, before)) return;
    refuse(i,
           fmt::format("takes a \"{}\" of {}, and the stage before it, \"{}\", makes {}", cascade_.passes,
                       by(own.passed), name(i - 1), by(before)),
           "make them equal: the size of the encoder that makes it, or that of the data of the stage before");
  }

  void require_asked(size_t i) const {
    const auto& first = stages_.front();
    for (const auto& spec : stages_[i].asked) {
      const auto* there = find(first.asked, spec.name);
      if (!there)
        refuse(i, fmt::format("is asked for by {}, which the first, \"{}\", does not take", to_text(spec), name(0)),
               "a cascade is asked for once: take the same texts and classes in both, by the same names");
      if (to_text(*there) != to_text(spec))
        refuse(i,
               fmt::format("is asked for by {}, and the first, \"{}\", by {}", to_text(spec), name(0), to_text(*there)),
               "make them equal: encoder, length and width of a text, number of classes");
      if (!there->names.empty() && !spec.names.empty() && there->names != spec.names)
        refuse(i, fmt::format("calls values of \"{}\" otherwise than the first, \"{}\"", spec.name, name(0)),
               "learn both from data of the same classes");
    }
  }

  // A text that one of them reads from its data and the other encodes may be the same. One that only another encoder
  // takes is a link of a chain, and makes what is asked for as much as the last.
  void require_same_encoders(size_t i, const std::string& text) const {
    auto [own, own_end] = stages_[i].text_encoders.equal_range(text);
    auto [first, first_end] = stages_.front().text_encoders.equal_range(text);
    if (first == first_end) return;
    for (; own != own_end && first != first_end; ++own, ++first)
      require_same_encoder(i, text, own->second, first->second);
    if (own != own_end || first != first_end) refuse_encoders(i, text);
  }

  void require_same_encoder(size_t i, const std::string& text, const formats::Table& own,
                            const formats::Table& first) const {
    if (formats::same_value(own, first)) return;
    for (const auto& [key, source, value] : own.entries()) {
      const auto* there = first.find(key);
      if (there && formats::same_value(value, *there)) continue;
      refuse(i,
             fmt::format("encodes \"{}\" with {} = {}, and the first, \"{}\", with {}", text, key,
                         shown(formats::render_toml_value(value), kSentenceShown), name(0),
                         there ? shown(formats::render_toml_value(*there), kSentenceShown) : std::string("none")),
             kMakeEqual);
    }
    refuse_encoders(i, text);
  }

  [[noreturn]] void refuse_encoders(size_t i, const std::string& text) const {
    refuse(i, fmt::format("encodes \"{}\" otherwise than the first, \"{}\"", text, name(0)), kMakeEqual);
  }

  static constexpr const char* kMakeEqual = "a text is encoded once for all stages: make their encoders equal";
  const Cascade& cascade_;
  const std::vector<StageTensors>& stages_;
};

}  // namespace

void require_agreement(const Cascade& cascade, const std::vector<StageTensors>& stages) {
  Agreement(cascade, stages).require();
}

}  // namespace ditto
