#include "core/exchange/foreign_import.h"

#include <algorithm>
#include <limits>

namespace ditto::checkpoint {

namespace {

constexpr size_t kNamedOfAKind = 5;
constexpr int64_t kComparedAtOnce = int64_t{1} << 22;  // numbers: tables of words have a billion

// Tables (sines, up to 1) that two programs computed in fp64 and rounded: a few units in the last place of fp32, or one
// of the file's type.
double constant_tolerance(at::ScalarType there) {
  if (there == at::kHalf) return std::numeric_limits<c10::Half>::epsilon();
  if (there == at::kBFloat16) return std::numeric_limits<c10::BFloat16>::epsilon();
  return 1e-5;
}

bool is_read(formats::Dtype dtype) {
  using formats::Dtype;
  return dtype == Dtype::f64 || dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16;
}

// A block of a tensor that is made of others, one under another: numbers that lie together there are read at once.
torch::Tensor read_block(const ForeignFile& file, const std::vector<std::string>& parts, const Dims& shape,
                         const Rectangle& block, at::ScalarType dtype) {
  const int64_t in_part = numbers(shape) / static_cast<int64_t>(parts.size());
  auto values = torch::empty(block.size, torch::TensorOptions(dtype));
  size_t whole = shape.size();  // dims from here on are all there
  while (whole > 0 && block.size[whole - 1] == shape[whole - 1]) --whole;
  const int64_t inside = c10::multiply_integers(shape.begin() + static_cast<int64_t>(whole), shape.end());
  const int64_t run = whole > 0 ? block.size[whole - 1] * inside : inside;
  for (int64_t done = 0; done < values.numel(); done += run) {
    int64_t at = 0, stride = 1, rest = done;
    for (size_t d = shape.size(); d-- > 0;) {
      at += (block.global_start[d] + rest % block.size[d]) * stride;
      rest /= block.size[d];
      stride *= shape[d];
    }
    for (int64_t taken = 0; taken < run;) {
      const int64_t part = (at + taken) / in_part, first = (at + taken) % in_part;
      const int64_t count = std::min(run - taken, in_part - first);
      values.view(-1).narrow(0, done + taken, count).copy_(file.read(parts[static_cast<size_t>(part)], first, count));
      taken += count;
    }
  }
  return values;
}

}  // namespace

void ForeignImport::parameter(const ForeignTensor& tensor, const LayoutEntry& ours) {
  const Dims shape = their_shape(tensor, ours.full_shape);
  Move move{&ours, {}, stacked_shape(tensor, ours.full_shape), tensor.rows};
  for (const std::string& name : tensor.theirs) {
    if (!taken_.count(name)) require(name, shape);
    move.parts.push_back(there(name));
  }
  moves_.push_back(std::move(move));
}

void ForeignImport::copy(const std::string& name, const std::string& of) {
  const auto original = there(of);
  if (!file_.has(original) || !is_read(file_.dtype(original))) return;  // said already
  const Dims shape = file_.shape(original);
  if (!require(name, shape)) return;
  const auto values = [&](const std::string& tensor, int64_t first, int64_t count) {
    return file_.read(tensor, first, count).to(torch::kDouble);
  };
  const int64_t all = numbers(shape);
  for (int64_t first = 0; first < all; first += kComparedAtOnce) {
    const int64_t count = std::min(kComparedAtOnce, all - first);
    if (!torch::equal(values(there(name), first, count), values(original, first, count)))
      return misfit(name, "differs from '" + of + "', of which this model keeps one for both");
  }
}

void ForeignImport::constant(const std::string& name, const torch::Tensor& expected) {
  const auto value = take(name, expected.sizes().vec());
  if (!value) return;
  const double difference =
      (value->to(torch::kDouble) - expected.to(torch::kCPU, torch::kDouble)).abs().max().item<double>();
  if (!(difference <= constant_tolerance(value->scalar_type())))
    misfit(name, "is a fixed table, and differs from this model's by " + std::to_string(difference));
}

void ForeignImport::refuse_others(const std::function<bool(const std::string&)>& is_beside) {
  for (const std::string& name : file_.names()) {
    if (!name.starts_with(prefix_)) continue;
    const std::string rest = name.substr(prefix_.size());
    if (!taken_.count(rest) && !(is_beside && is_beside(rest))) others_.push_back(rest);
  }
}

// Of a tensor that was renamed both names are said, one as the nearest to the other.
std::vector<std::string> ForeignImport::missing_ones() const {
  std::vector<std::string> list;
  for (const auto& name : missing_) {
    const auto near = list.size() < kNamedOfAKind ? nearest(name, others_) : std::string();
    list.push_back("tensor '" + name + "' is missing" + (near.empty() ? "" : " (the nearest name is '" + near + "')"));
  }
  return list;
}

void ForeignImport::finish(const std::string& section) {
  std::vector<std::string> without_place;
  for (const auto& name : others_) without_place.push_back("tensor '" + name + "' has no place in this model");
  std::string text;
  size_t more = 0;
  for (const auto& list : {misfits_, missing_ones(), without_place})
    for (size_t i = 0; i < list.size(); ++i)
      if (i < kNamedOfAKind)
        text += (text.empty() ? "" : ", ") + list[i];
      else
        ++more;
  if (more > 0) text += ", and " + std::to_string(more) + " more";
  if (!text.empty())
    throw Error(ErrorKind::checkpoint, path_, "does not fit this model: " + text,
                "check the recipe's [" + section + "] against the file");
  torch::NoGradGuard no_grad;
  for (const auto& move : moves_)
    for (const auto& block : move.to->slices()) fill(move, block);
}

// Rows that follow one another there are read together.
void ForeignImport::fill(const Move& move, const Rectangle& block) const {
  auto target = move.to->tensor.detach();
  for (size_t d = 0; d < block.size.size(); ++d)
    target = target.narrow(static_cast<int64_t>(d), block.local_start[d], block.size[d]);
  const auto read = [&](const Rectangle& part) {
    return read_block(file_, move.parts, move.stacked, part, target.scalar_type());
  };
  if (move.rows.empty()) {
    target.copy_(read(block));
    return;
  }
  const auto* rows = move.rows.data() + block.global_start[0];
  for (int64_t done = 0, count = 0; done < block.size[0]; done += count) {
    count = 1;
    while (done + count < block.size[0] && rows[done + count] == rows[done] + count) ++count;
    Rectangle part = block;
    part.global_start[0] = rows[done];
    part.size[0] = count;
    target.narrow(0, done, count).copy_(read(part));
  }
}

std::string ForeignImport::there(const std::string& name) const {
  const auto was = former_.find(name);
  return prefix_ + (was == former_.end() || file_.has(prefix_ + name) ? name : was->second);
}

bool ForeignImport::require(const std::string& name, const Dims& shape) {
  const std::string there = this->there(name);
  taken_.insert(name);
  taken_.insert(there.substr(prefix_.size()));
  if (!file_.has(there)) {
    missing_.push_back(name);
    return false;
  }
  if (const auto dtype = file_.dtype(there); !is_read(dtype)) {
    misfit(name, "is of " + std::string(formats::dtype_name(dtype)) +
                     " there, whose scales lie elsewhere: F64, F32, F16 and BF16 are read");
    return false;
  }
  const Dims found = file_.shape(there);
  if (found == shape) return true;
  misfit(name, "is " + to_text(found) + " there and " + to_text(shape) + " here" +
                   (found.size() == 2 && Dims(found.rbegin(), found.rend()) == shape ? ", transposed" : ""));
  return false;
}

std::optional<torch::Tensor> ForeignImport::take(const std::string& name, const Dims& shape) {
  if (!require(name, shape)) return std::nullopt;
  return file_.read(there(name));
}

void ForeignImport::misfit(const std::string& name, const std::string& what) {
  misfits_.push_back("tensor '" + name + "' " + what);
}

}  // namespace ditto::checkpoint
