#include <ditto/nn/joins.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn/maps.h>

namespace ditto {

using torch::Tensor;

void Joins::read(OptionReader& option, std::vector<std::string>& names) {
  option("joins", names,
         "pictures that are joined to x as further channels, enlarged to its sides: what an encoder makes (\"low\" of "
         "\"pyramid\"), or what the data have")
      .noted_if_given();
}

Joins::Joins(const std::string& model, const std::vector<std::string>& names, const ModelNeeds& needs)
    : joined_(needs) {
  const auto refuse = [](const std::string& found, const std::string& remedy) {
    throw Error(ErrorKind::config, "model.joins", found, remedy);
  };
  if (names.empty()) return;
  const auto& x = needs.shape("x");
  if (x.size() != 3)
    refuse("is of pictures, and model \"" + model + "\" is given " + to_text(OptionValue(x)),
           "leave it out, or choose pictures");
  if (std::any_of(x.begin(), x.end(), [](int64_t side) { return side < 1; }))
    refuse("is of pictures of one size, and these have several", "leave it out, or give data.size one size");
  int64_t channels = x[0];
  for (const auto& name : names) {
    const auto* spec = find(needs.inputs, name);
    if (name == "clean") refuse("names \"clean\", which is what the model is to predict", "name another picture");
    if (name == "x" || std::count(names.begin(), names.end(), name) > 1)
      refuse(name == "x" ? "names \"x\", which they are joined to" : "names \"" + name + "\" twice",
             "name every other picture once");
    if (!spec) {
      std::string offered;
      for (const auto& one : needs.inputs)
        if (one.name != "x" && one.name != "clean" && one.shape.size() == 3)
          offered += (offered.empty() ? "" : ", ") + one.name;
      refuse("names \"" + name + "\", and neither the data nor an encoder makes it",
             offered.empty() ? "let an encoder make it, as \"pyramid\" does" : "choose among: " + offered);
    }
    const auto& shape = spec->shape;
    if (shape.size() != 3 || spec->dtype != torch::kFloat || spec->values > 0)
      refuse("names " + to_text(*spec) + ", which is no picture", "name a picture [C, H, W]");
    if (std::any_of(shape.begin(), shape.end(), [](int64_t side) { return side < 1; }) || shape[1] > x[1] ||
        shape[2] > x[2])
      refuse("names " + to_text(*spec) + ", and x is " + to_text(OptionValue(x)),
             "give a picture that is no larger, of one size");
    specs_.push_back(*spec);
    channels += shape[0];
  }
  for (auto& input : joined_.inputs)
    if (input.name == "x") input.shape[0] = channels;
}

Tensor Joins::forward(const Batch& batch, Context& ctx) const {
  const auto& x = batch.at("x");
  if (specs_.empty()) return x;
  const std::vector<int64_t> sides{x.size(2), x.size(3)};
  Tensors all{x};
  for (const auto& spec : specs_) {
    const auto picture = batch.at(spec.name).to(x.scalar_type());
    const bool fits = picture.size(2) == sides[0] && picture.size(3) == sides[1];
    all.push_back(fits ? picture : bicubic(picture, ctx, sides));
  }
  return torch::cat(all, 1);
}

void Joins::add_to(TensorSpecs& takes) const { takes.insert(takes.end(), specs_.begin(), specs_.end()); }

std::string Joins::not_theirs() const {
  return specs_.empty() ? "" : "is given x alone, and this model joins pictures to it (model.joins)";
}

}  // namespace ditto
