#include "tests/matrix/packed.h"

#include <torch/types.h>

namespace ditto::matrix {

using torch::Tensor;

namespace {

class Packed final : public Model {
 public:
  explicit Packed(std::shared_ptr<Model> inner) : inner_(std::move(inner)) {}

  Conditioning condition(const Batch& batch, Context& ctx) override { return inner_->condition(batch, ctx); }
  Stream tokens(const Batch& batch, Context& ctx) override {
    auto stream = inner_->tokens(batch, ctx);
    const auto packing = std::make_shared<Packing>();
    Tensors rows, samples;
    for (int64_t i = 0; i < batch.size(); ++i) {
      const int64_t length = stream.x_BTD.size(1) - 9 * (batch.ids[static_cast<size_t>(i)] % 4);
      packing->lengths.push_back(length);
      rows.push_back(stream.x_BTD[i].narrow(0, 0, length));
      samples.push_back(torch::full({length}, i, stream.x_BTD.options().dtype(torch::kLong).requires_grad(false)));
    }
    packing->sample_T = torch::cat(samples);
    stream.x_BTD = torch::cat(rows).unsqueeze(0);
    stream.packing = packing;
    return stream;
  }
  void constants(const Batch& batch, Stream& stream, Context& ctx) override {
    inner_->constants(batch, stream, ctx);
    if (!stream.rotary_TK.defined()) return;
    Tensors rows;
    for (const int64_t length : stream.packing->lengths) rows.push_back(stream.rotary_TK.narrow(0, 0, length));
    stream.rotary_TK = torch::cat(rows);
  }
  int64_t depth() const override { return inner_->depth(); }
  Stream run_block(int64_t index, Stream stream, Context& ctx) override {
    return inner_->run_block(index, std::move(stream), ctx);
  }
  Tensor head(const Stream& packed, Context& ctx) override {
    Stream stream = packed;
    stream.packing = nullptr;
    Tensors rows;
    for (const auto& row : packed.x_BTD[0].split_with_sizes(packed.packing->lengths))
      rows.push_back(torch::constant_pad_nd(row, {0, 0, 0, packed.grid.tokens() - row.size(0)}));
    stream.x_BTD = torch::stack(rows);
    return inner_->head(stream, ctx);
  }
  TensorSpecs takes() const override { return inner_->takes(); }
  bool token_local() const override { return inner_->token_local(); }

 private:
  std::shared_ptr<Model> inner_;
};

}  // namespace

std::shared_ptr<Model> pack(std::shared_ptr<Model> inner) { return std::make_shared<Packed>(std::move(inner)); }

}  // namespace ditto::matrix
