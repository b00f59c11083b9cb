// Pipeline parallelism: each rank holds some of the blocks, and micro-batches pass through the ranks (1F1B and
// interleaved: schedule.h).
//
// A chunk is a run of consecutive blocks on one rank; chunk c of rank r is stage c * ranks + r of ranks *
// virtual_stages. The first stage also runs condition and tokens, the last one the head
// and the objective. What blocks change goes from
// stage to stage with its gradient coming back, and so does the conditioning: each gradient is then added up in the
// order in which one rank adds it, to the last bit. Conditioning may instead be computed on every rank ("replicated"),
// by its first chunk for all of them.
#include <map>
#include <memory>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/math/sizes.h>
#include <ditto/parallel/parcel.h>
#include <ditto/parallel/peer_channel.h>
#include <ditto/parallel/strategy.h>

#include "schedule.h"
#include "stages.h"

namespace ditto {
namespace {

using torch::Tensor;

constexpr int64_t kMostDims = 8;  // of a prediction

struct PipelineOptions {
  int64_t virtual_stages = 1;
  std::string pipeline_conditioning = "carried", pipeline_cut = "cost";
  void read(OptionReader& option) {
    option("virtual_stages", virtual_stages, "runs of blocks a pipeline rank has; more: smaller bubbles, more sends")
        .between(1, most::kBlocks)
        .changes(Effect::speed);
    option("pipeline_conditioning", pipeline_conditioning,
           "carried: made on the first stage and sent along, the bits of one rank; replicated: made on every rank")
        .one_of({"carried", "replicated"})
        .changes(Effect::bits);
    option(
        "pipeline_cut", pipeline_cut,
        "cost: blocks are dealt out by the operations counted for each (by number where they are equal, or the model "
        "cannot be counted); number: as many to each stage")
        .one_of({"cost", "number"})
        .changes(Effect::speed);
  }
};

class Pipeline final : public ParallelStrategy {
 public:
  using Options = PipelineOptions;
  Pipeline(const Options& options, const Needs& needs)
      : mesh_(*needs.mesh),
        group_(mesh_.group(Axis::pipeline)),
        channel_(group_, mesh_.traffic()),
        chunks_(options.virtual_stages),
        stages_(group_.size() * chunks_),
        depth_(needs.depth),
        replicates_(options.pipeline_conditioning == "replicated"),
        keeps_rounds_apart_(chunks_ > 1 && needs.deterministic &&
                            (mesh_.data_ranks() > 1 || needs.sum_order == SumOrder::tree)) {
    if (stages_ > depth_)
      throw Error(ErrorKind::config, "parallel.pipeline",
                  c10::str(group_.size(), " ranks x ", chunks_, " virtual_stages = ", stages_,
                           " stages are more than the model's ", depth_, " blocks"),
                  "lower parallel.pipeline or parallel.virtual_stages");
    starts_ = starts(options.pipeline_cut, needs);
  }

  std::optional<Axis> axis() const override { return Axis::pipeline; }
  bool exact() const override { return true; }

  void claim(Layout& layout) override {
    layout_ = &layout;
    std::vector<LayoutEntry> mine;
    for (auto& entry : layout.entries) {
      if (!is_mine(entry.unit)) {
        free_storage(entry.parameter.leaf());
        continue;
      }
      if (!replicates_ || entry.unit.kind != Unit::condition) entry.absent.insert(Axis::pipeline);
      mine.push_back(std::move(entry));
    }
    layout.entries = std::move(mine);
  }

  // Where conditioning is replicated, ranks after the first run `begin` too, without its tokens: those have come.
  UnitRun wrap_unit(UnitRun run) override {
    if (!replicates_) return run;
    return [this, run](const Unit& unit, UnitCall& call) {
      if (unit.kind != Unit::tokens || !arriving_) return run(unit, call);
      call.stream.grid = arriving_->grid;
      call.stream.packing = arriving_->packing;
    };
  }

  bool train_step(const std::vector<Batch>& mine, Program& program, const StepPlan& plan) override {
    const auto count = static_cast<int64_t>(mine.size());
    Step step{mine, program, {}};
    for (const auto& turn : pipeline_schedule(group_.rank(), group_.size(), chunks_, count))
      turn.forward ? forward(turn, step) : backward(turn, step);
    for (int64_t accumulation = count; accumulation < plan.accumulations; ++accumulation)
      program.accumulation_done(accumulation);
    channel_.finish();
    return true;
  }

  std::optional<Tensor> predict(const Batch& batch, Program& program) override {
    Tensor prediction;
    MicroBatch here;
    here.batch = batch;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const int64_t stage = stage_of(chunk);
      auto visit = enter(stage, here, program);
      if (is_last(stage))
        prediction = prediction_of(program.head(visit.stream, batch), batch);
      else
        leave(stage, visit.stream);
    }
    prediction = to_all(prediction, device_of(batch));
    channel_.finish();
    return prediction;
  }

 private:
  // What a micro-batch leaves on a stage between its forward and its backward.
  struct Flight {
    Tensors arrived, left;  // leaves whose gradients go back; outputs whose gradients come back, or the loss
  };
  // A micro-batch on this rank, from its first forward to its last backward.
  struct MicroBatch {
    std::optional<Batch> batch;         // prepared
    Conditioning conditioning;          // replicated: made here, read by all chunks
    Tensors made, leaves;               // what of it wants a gradient, and where the chunks' gradients meet
    std::map<int64_t, Flight> flights;  // by chunk
    std::vector<Tensors> ahead;         // gradients made before its accumulation is taken up
  };
  struct Step {
    const std::vector<Batch>& batches;
    Program& program;
    std::map<int64_t, MicroBatch> under_way;
  };
  struct Visit {
    Stream stream;
    Tensors arrived;
  };

  int64_t stage_of(int64_t chunk) const { return chunk * group_.size() + group_.rank(); }
  int rank_of(int64_t stage) const { return static_cast<int>(stage % group_.size()); }
  bool makes_conditioning(int64_t stage) const { return stage == 0 || (replicates_ && stage < group_.size()); }
  bool is_last(int64_t stage) const { return stage + 1 == stages_; }
  int64_t first_block(int64_t stage) const { return starts_[static_cast<size_t>(stage)]; }
  std::vector<int64_t> starts(const std::string& by, const Needs& needs) const {
    std::vector<double> costs;
    if (by == "cost" && stages_ > 1 && needs.block_costs) costs = needs.block_costs();
    return costs.empty() ? stages_by_number(depth_, stages_) : stages_by_cost(costs, stages_);
  }
  // Tags of what goes from stage - 1 to `stage`, and of the gradients on the way back.
  static int tag(int64_t stage) { return static_cast<int>(2 * stage); }
  static int gradient_tag(int64_t stage) { return static_cast<int>(2 * stage + 1); }

  static torch::Device device_of(const Batch& batch) { return batch.begin()->tensors.begin()->second.device(); }

  bool is_mine(const Unit& unit) const {
    switch (unit.kind) {
      case Unit::condition: return replicates_ || group_.rank() == 0;
      case Unit::tokens: return group_.rank() == 0;
      case Unit::head:
      case Unit::objective: return group_.rank() == group_.size() - 1;
      case Unit::Kind::block: break;
    }
    for (int64_t chunk = 0; chunk < chunks_; ++chunk)
      if (unit.block >= first_block(stage_of(chunk)) && unit.block < first_block(stage_of(chunk) + 1)) return true;
    return false;
  }

  // The stream after the stage's blocks, from its beginning or from the stage before.
  Visit enter(int64_t stage, MicroBatch& here, Program& program) {
    Visit visit = stage == 0 ? Visit{program.begin(*here.batch), {}} : receive(stage, *here.batch, program);
    if (replicates_) share(visit.stream.condition, stage, here);
    program.blocks(first_block(stage), first_block(stage + 1), visit.stream);
    return visit;
  }

  // What the first chunk has made, as leaves: there the gradients of all chunks meet before they go on.
  void share(Conditioning& conditioning, int64_t stage, MicroBatch& here) const {
    if (!makes_conditioning(stage)) return void(conditioning = here.conditioning);
    Stream stream;
    stream.condition = std::move(conditioning);
    for (const auto& field : stream.fields()) {
      if (!field.tensor->requires_grad()) continue;
      here.made.push_back(*field.tensor);
      here.leaves.push_back(*field.tensor = field.tensor->detach().requires_grad_());
    }
    conditioning = here.conditioning = stream.condition;
  }

  Visit receive(int64_t stage, const Batch& batch, Program& program) {
    const int from = rank_of(stage - 1);
    StreamParcel parcel;
    parcel.header = channel_.receive_numbers(from, tag(stage));
    parcel.tensors = StreamParcel::room(parcel.header, device_of(batch));
    for (auto& tensor : parcel.tensors) channel_.receive(tensor, from, tag(stage));
    Visit visit;
    for (const size_t i : parcel.differentiable()) visit.arrived.push_back(parcel.tensors[i].requires_grad_());
    parcel.unpack(visit.stream);
    if (makes_conditioning(stage)) visit.stream.condition = begin_again(visit.stream, batch, program);
    program.constants(batch, visit.stream);
    return visit;
  }

  Conditioning begin_again(const Stream& arriving, const Batch& batch, Program& program) {
    arriving_ = &arriving;
    auto conditioning = program.begin(batch).condition;
    arriving_ = nullptr;
    return conditioning;
  }

  // Sends the stream to the next stage; what of it wants a gradient.
  Tensors leave(int64_t stage, Stream& stream) {
    if (replicates_) stream.condition = {};
    const auto parcel = StreamParcel::of(stream, [](const Field& field) { return field.role != Role::constant; });
    const int to = rank_of(stage + 1);
    channel_.send_numbers(parcel.header, to, tag(stage + 1));
    for (const auto& tensor : parcel.tensors) channel_.send(tensor, to, tag(stage + 1));
    Tensors left;
    for (const size_t i : parcel.differentiable()) left.push_back(parcel.tensors[i]);
    return left;
  }

  void forward(const PipelineTurn& turn, Step& step) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
    const int64_t stage = stage_of(turn.chunk);
    auto& here = step.under_way[turn.micro_batch];
    if (!here.batch) here.batch = step.program.prepare(step.batches[static_cast<size_t>(turn.micro_batch)]);
    auto visit = enter(stage, here, step.program);
    auto& flight = here.flights[turn.chunk];
    flight.arrived = std::move(visit.arrived);
    if (is_last(stage)) {
      const auto outputs = step.program.head(visit.stream, *here.batch);
      flight.left = {step.program.loss(visit.stream, outputs, *here.batch)};
    } else {
      flight.left = leave(stage, visit.stream);
    }
    if (turn.chunk + 1 == chunks_) here.batch.reset();
  }

  void backward(const PipelineTurn& turn, Step& step) {
    const int64_t stage = stage_of(turn.chunk);
    auto& here = step.under_way.at(turn.micro_batch);
    const auto flight = std::move(here.flights.extract(turn.chunk).mapped());
    const bool is_ahead = keeps_rounds_apart_ && turn.chunk > 0;
    const auto others = is_ahead ? take_gradients() : Tensors();
    if (!flight.left.empty()) step.program.backward(flight.left, gradients_of(flight.left, stage));
    if (stage > 0) send_gradients(flight.arrived, stage);
    if (is_ahead) {
      here.ahead.push_back(take_gradients());
      add_gradients(others);
    }
    if (turn.chunk > 0) return;
    if (!here.made.empty()) step.program.backward(here.made, gradients_at(here.leaves));
    for (const auto& gradients : here.ahead) add_gradients(gradients);
    step.under_way.erase(turn.micro_batch);
    step.program.accumulation_done(turn.micro_batch);
  }

  Tensors gradients_of(const Tensors& left, int64_t stage) {
    if (is_last(stage)) return {Tensor()};
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::backward);
    Tensors gradients;
    for (const auto& tensor : left) {
      gradients.push_back(torch::empty(tensor.sizes(), tensor.options().requires_grad(false)));
      channel_.receive(gradients.back(), rank_of(stage + 1), gradient_tag(stage + 1));
    }
    return gradients;
  }

  // Blocks may have had no use for some of them.
  static Tensors gradients_at(const Tensors& leaves) {
    Tensors gradients;
    for (const auto& leaf : leaves) gradients.push_back(leaf.grad().defined() ? leaf.grad() : torch::zeros_like(leaf));
    return gradients;
  }

  void send_gradients(const Tensors& arrived, int64_t stage) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::backward);
    for (const auto& gradient : gradients_at(arrived)) channel_.send(gradient, rank_of(stage - 1), gradient_tag(stage));
  }

  Tensors take_gradients() const {
    Tensors gradients;
    for (const auto& entry : layout_->entries)
      gradients.push_back(std::exchange(entry.parameter.leaf().mutable_grad(), Tensor()));
    return gradients;
  }

  void add_gradients(const Tensors& gradients) const {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      auto& grad = layout_->entries[i].parameter.leaf().mutable_grad();
      grad = grad.defined() ? grad.add_(gradients[i]) : gradients[i];
    }
  }

  // Samples of several sizes are predicted for their losses alone, which the head has entered: there is nothing to
  // send.
  static Tensor prediction_of(const Outputs& outputs, const Batch& batch) {
    return batch.parts.empty() ? outputs.at("prediction") : torch::zeros({1}, device_of(batch));
  }

  // The last stage's prediction, on every rank.
  Tensor to_all(const Tensor& prediction, torch::Device device) const {
    const int last = group_.size() - 1;
    auto form = torch::zeros({kMostDims + 2}, torch::kLong);
    auto* numbers = form.data_ptr<int64_t>();
    if (group_.rank() == last) {
      numbers[0] = static_cast<int64_t>(prediction.scalar_type());
      numbers[1] = prediction.dim();
      std::copy(prediction.sizes().begin(), prediction.sizes().end(), numbers + 2);
    }
    group_.broadcast(form, last);
    if (group_.rank() == last) return group_.broadcast(prediction.contiguous(), last);
    const auto options = torch::TensorOptions(static_cast<at::ScalarType>(numbers[0])).device(device);
    return group_.broadcast(torch::empty(at::IntArrayRef(numbers + 2, static_cast<size_t>(numbers[1])), options), last);
  }

  const Mesh& mesh_;
  const Group& group_;
  PeerChannel channel_;
  const int64_t chunks_, stages_, depth_;
  std::vector<int64_t> starts_;  // each stage's first block, and the end
  const bool replicates_;
  // Chunks after the first are some micro-batches ahead: where core sums accumulation by accumulation, their gradients
  // have to wait.
  const bool keeps_rounds_apart_;
  Layout* layout_ = nullptr;
  const Stream* arriving_ = nullptr;  // while a later stage begins
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Pipeline, "pipeline", "1.1.0", "Apache-2.0",
             "each rank holds some of the blocks, and micro-batches pass through")
