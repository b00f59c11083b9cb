// ditto bench kernels [RECIPE]
#include <set>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "core/assembly/run_notes.h"
#include "core/bench/bench_kernels.h"

namespace ditto {

namespace {

// bench/dit_s_2.toml: latents of 256 x 256 pictures.
constexpr const char* kDitS2 = R"(
[run]
name = "bench_kernels"
batch = 8
[data]
plugin = "synthetic"
content = "noise"
classes = 1000
channels = 4
height = 32
width = 32
[encoder.image]
plugin = "identity"
[model]
plugin = "dit"
preset = "S/2"
[scheduler]
plugin = "iddpm"
[objective]
plugin = "diffusion"
[optimizer]
plugin = "adamw"
)";

struct KernelArguments : BenchArguments {
  KernelBenchOptions options;
};

const char* bound_of(const KernelBench& bench, const KernelBench::Pass& pass) {
  return bench.is_bound_by_products(pass) ? "products" : "memory";
}

nlohmann::ordered_json bench_json(const KernelBench& bench, const KernelBench::Pass& pass) {
  return {{"seconds", pass.seconds}, {"median_s", pass.median()},  {"bytes", pass.bytes},
          {"flops", pass.flops},     {"share", bench.share(pass)}, {"bound", bound_of(bench, pass)}};
}

nlohmann::ordered_json bench_json(const KernelBench& bench, const Recipe& recipe) {
  auto calls = nlohmann::ordered_json::array();
  for (const auto& call : bench.calls) {
    auto variants = nlohmann::ordered_json::array();
    for (const auto& variant : call.timed)
      variants.push_back({{"variant", variant.name},
                          {"chosen", variant.chosen},
                          {"copies", variant.copies},
                          {"forward", bench_json(bench, variant.forward)},
                          {"backward", variant.backward ? bench_json(bench, *variant.backward) : nullptr}});
    calls.push_back({{"op", call.op},
                     {"call", call.text},
                     {"calls_a_step", call.calls},
                     {"variants", variants},
                     {"cannot", call.cannot}});
  }
  return {{"recipe", recipe.name},
          {"precision", recipe.run.precision},
          {"numerics", recipe.run.numerics},
          {"batch", recipe.run.batch},
          {"threads", torch::get_num_threads()},
          {"matmul_flops_per_s", bench.matmul_flops},
          {"stream_bytes_per_s", bench.stream_bytes},
          {"calls", calls},
          {"machine", machine_record(torch::Device(torch::kCPU))}};
}

std::string bench_text(const KernelBench& bench, const Recipe& recipe) {
  auto text = fmt::format("{}: {}, numerics \"{}\", batch {}, {} threads, {}\n", shown(recipe.name),
                          recipe.run.precision, recipe.run.numerics, recipe.run.batch, torch::get_num_threads(),
                          machine_record(torch::Device(torch::kCPU)).at("processor"));
  text += fmt::format("in this process: matrix multiply {:.3f} TFLOP/s, memory {:.1f} GB/s\n",
                      1e-12 * bench.matmul_flops, 1e-9 * bench.stream_bytes);
  text +=
      fmt::format("{:24} {:>12} {:>18} {:>12} {:>18}\n", "median", "forward ms", "share of", "backward ms", "share of");
  const auto columns = [&](const KernelBench::Pass& pass) {
    return fmt::format(" {:12.3f} {:7.0f} % {:>8}", 1e3 * pass.median(), 100 * bench.share(pass),
                       bound_of(bench, pass));
  };
  std::set<std::string> timed, not_timed;
  for (const auto& call : bench.calls) {
    text += call.text + (call.calls > 0 ? fmt::format(", {} a step\n", call.calls) : ", a test case\n");
    for (const auto& variant : call.timed) {
      timed.insert(call.op + "/" + variant.name);
      text += fmt::format("  {:22}", variant.name + (variant.chosen ? " *" : "") + (variant.copies ? " +" : "")) +
              columns(variant.forward) + (variant.backward ? columns(*variant.backward) : "") + "\n";
    }
    for (const auto& variant : call.cannot) not_timed.insert(call.op + "/" + variant);
  }
  text += "* chosen by the recipe\n+ copies tensors whose numbers do not follow one another, before it computes\n";
  for (const auto& row : timed) not_timed.erase(row);
  if (!not_timed.empty()) text += fmt::format("take none of these calls: {}\n", fmt::join(not_timed, ", "));
  return text;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, CommandLine& line) {
  auto a = std::make_shared<KernelArguments>();
  a->otherwise = kDitS2;
  auto* command =
      add_bench(bench, line, *a, "kernels",
                "Time each variant of each op at a model's shapes, beside this machine's products and memory",
                "run.precision=bf16");
  command->add_option("--op", a->options.ops, "this op alone; may be given several times")->allow_extra_args(false);
  command->add_option("--seconds", a->options.seconds, "how long, for each variant and call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer(
      "Example: ditto bench kernels configs/digits.toml --op linear --op attention --set run.precision=bf16\n"
      "Takes one step and times what it has called, and of the ops that it has not called the largest test case. The\n"
      "share is of the matrix multiply's rate or of the memory's, whichever bounds the call: products in the op's\n"
      "meaning, twice as many backward, and bytes of all that goes in and comes out, once. Writes no run's folder.");
  command->callback([a, &line] {
    line.exit_code =
        bench_alone("ditto bench kernels", *a, line, BenchNeeds::training, [&](Recipe& recipe, Rank& rank) {
          const auto found = bench_kernels(recipe, rank.registry(), rank.mesh(), a->options);
          return BenchReport{bench_json(found, recipe), bench_text(found, recipe)};
        });
  });
}

}  // namespace ditto
