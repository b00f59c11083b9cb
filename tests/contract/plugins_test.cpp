// The contract tests of sdk/testing, run on every plugin of the tree. A plugin that is new is tested with its defaults
// without an edit here; where those do not do, its options stand in the tables below.
//
// Claim (plugins): Every model, scheduler, sampler, objective, optimizer, strategy, kernel, source and encoder keeps
// its interface's promises: gradients against finite differences, kernels against references, strategies against one
// rank, bits on repetition. Also: `encoders_test.cpp`
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include <ditto/testing/checks.h>

#include "core/formats/archive/tar.h"
#include "tests/contract/contract.h"
#include "tests/contract/imagen_cases.h"
#include "tests/support/files.h"

namespace fs = std::filesystem;
using ditto::ModelNeeds;
using ditto::OptionValue;
using ditto::testing::model_needs;
using ditto::testing::OptionValues;

namespace {

using namespace ditto::contract;

// The option sets to test a plugin with; its defaults alone where it is not listed.
using Variants = std::map<std::string, std::vector<OptionValues>>;
std::vector<OptionValues> variants(const Variants& table, const std::string& id) {
  const auto it = table.find(id);
  return it == table.end() ? std::vector<OptionValues>{{}} : it->second;
}

OptionValues tiny(OptionValues more = {}) {
  more.insert({{"depth", number(2)}, {"width", number(32)}, {"heads", number(4)}});
  return more;
}

const ModelNeeds kClasses = model_needs({4, 8, 8}, 4, 10), kLearnedSigma = model_needs({3, 8, 4}, 6);

std::vector<ModelCase> pictures(const std::vector<OptionValues>& variants) {
  std::vector<ModelCase> cases;
  for (const auto& options : variants)
    for (const ModelNeeds& needs : {kClasses, kLearnedSigma}) cases.push_back({options, needs});
  return cases;
}

std::vector<ModelCase> dit_text_cases() {
  const auto plain = model_needs({3, 8, 4}, 6, 0, 12), labelled = model_needs({4, 8, 8}, 4, 10, 5);
  return {{tiny(), plain},
          {tiny({{"qk_norm", true}, {"kv_heads", number(2)}}), labelled},
          {tiny({{"cross", text("modulated")}, {"rotary", true}, {"qk_norm", true}}), plain},
          {tiny({{"cross", text("modulated")}}), plain}};
}

ModelCase joined(ModelNeeds needs) {  // a smaller picture and one as large beside x
  for (const auto& [name, shape] : {std::pair("low", std::vector<int64_t>{4, 4, 2}), {"outline", {1, 8, 8}}})
    needs.inputs.push_back({name, at::kFloat, shape, "a picture"});
  ditto::testing::ModelChecks one_picture;  // which stays where a class or a text is dropped
  one_picture.adjust = [](auto& in) { in["low"].fill_(0.5), in["outline"].fill_(0.5); };
  return {tiny({{"joins", std::vector<std::string>{"low", "outline"}}}), needs, one_picture};
}

std::vector<ModelCase> dit_cases() {
  auto cases = pictures({tiny({{"convention", text("facebook")}}), tiny({{"convention", text("diffusers")}}),
                         tiny({{"spare_variance", true}})});
  auto captioned = model_needs({3, 4, 8, 4}, 6);
  captioned.inputs.push_back({"text_pooled", at::kFloat, {9}, "a whole text"});
  cases.push_back({tiny({{"patch_frames", number(2)}}), captioned});
  cases.push_back(joined(model_needs({4, 8, 8}, 4, 10)));
  return cases;
}

std::vector<ModelCase> pixart_cases() {
  const auto plain = model_needs({3, 8, 4}, 6, 0, 12);
  auto sized = model_needs({4, 8, 8}, 4, 10, 5);
  sized.inputs.push_back({"resolution", at::kFloat, {2}, "height and width in pixels"});
  sized.inputs.push_back({"aspect_ratio", at::kFloat, {}, "height over width"});
  const OptionValues wide{
      {"depth", number(2)}, {"width", number(48)}, {"heads", number(4)}, {"micro_conditions", true}};
  auto stretched = wide;
  stretched.merge(OptionValues{{"base_size", number(4)}, {"interpolation_scale", 2.0}, {"pixels", number(16)}});
  ditto::testing::ModelChecks one_size;  // sizes stay where a text is dropped
  one_size.adjust = [](ditto::Batch& in) {
    in["resolution"] = torch::full_like(in.at("resolution"), 64);
    in["aspect_ratio"] = torch::ones_like(in.at("aspect_ratio"));
  };
  return {{tiny({{"null_text", text("zero")}}), plain}, {wide, sized, one_size}, {stretched, plain}};
}

std::vector<ModelCase> st_dit_cases() {
  const auto video = model_needs({3, 4, 8, 4}, 6, 10), captioned = model_needs({3, 4, 8, 4}, 3, 10, 12);
  const auto alternating = text("alternating");
  return {
      {tiny(), video},
      {tiny({{"full", true}, {"rotary", text("all")}, {"kv_heads", number(2)}}), captioned},
      {tiny({{"arrangement", alternating}, {"adaln", text("single")}, {"qk_norm", true}, {"rotary", text("temporal")}}),
       captioned},
      {tiny({{"arrangement", alternating},
             {"cross", text("spatial")},
             {"patch_frames", number(2)},
             {"rotary", text("all")}}),
       captioned},
      {tiny({{"fps", OptionValue(24.0)}, {"base_side", number(4)}, {"null_tokens", number(7)}}), captioned},
      {tiny({{"cross", text("none")}, {"full", true}, {"rotary", text("temporal")}}), captioned}};
}

std::vector<ModelCase> latte_cases() {
  const auto video = model_needs({3, 4, 8, 4}, 6, 10), captioned = model_needs({3, 4, 8, 4}, 3, 10, 12);
  return {{tiny(), video}, {tiny({{"adaln", text("single")}, {"base_side", number(4)}}), captioned}};
}

std::vector<ModelCase> dit_moe_cases() {
  return pictures({
      tiny({{"experts", number(4)}, {"moe_every", number(2)}}),
      tiny({{"experts", number(4)}, {"normalise", true}, {"shared_ratio", number(1)}}),
      tiny({{"experts", number(4)}, {"top_k", number(1)}, {"qk_norm", true}}),
      tiny({{"experts", number(3)}, {"router", text("expert_choice")}}),
  });
}

std::vector<ModelCase> nemo_cases(OptionValues options, const char* option, const char* value) {
  options.merge(OptionValues{{"max_frames", number(4)}, {"max_side", number(8)}});
  auto others = options;
  others.merge(OptionValues{{option, text(value)}, {"kv_heads", number(2)}});
  const auto captioned = model_needs({3, 4, 8, 4}, 3, 0, 12);
  return {{tiny(options), captioned}, {tiny(others), captioned}};
}

ModelNeeds pooled_text() {
  auto needs = model_needs({3, 4, 8}, 6, 10, 12);
  needs.inputs.push_back({"text_pooled", at::kFloat, {9}, "a whole text"});
  return needs;
}

std::vector<ModelCase> mmdit_cases() {
  return {{tiny(), model_needs({4, 8, 4}, 4, 0, 12)},
          {tiny({{"dual_attention", number(1)}, {"position_side", number(4)}}), pooled_text()},
          joined(model_needs({4, 8, 8}, 4, 0, 12))};
}

std::vector<ModelCase> flux_cases() {
  const OptionValue rotary = std::vector<int64_t>{2, 2, 4};
  return {{tiny({{"single_depth", number(2)}, {"rotary", rotary}, {"guidance_embed", true}}), pooled_text()},
          {tiny({{"single_depth", number(1)}, {"text_mask", false}, {"text_tokens", number(9)}}), pooled_text()}};
}

std::vector<ModelCase> wan_cases() {
  const auto video = model_needs({3, 4, 8, 4}, 6, 0, 12);
  std::vector<ModelCase> cases{
      {tiny(), video},
      {tiny({{"hidden", number(48)}, {"patch_frames", number(2)}, {"null_text", text("empty")}}), video},
      {tiny({{"text_mask", false}, {"text_tokens", number(9)}}), video}};
  cases[1].checks.adjust = [](ditto::Batch& in) {  // there is one empty text
    for (const char* name : {"text_empty", "text_empty_mask"})
      in[name] = in.at(name).slice(0, 0, 1).expand_as(in.at(name)).contiguous();
  };
  return cases;
}

// The autoencoder of both kinds.
std::vector<ModelCase> autoencoder_cases() {
  ditto::testing::ModelChecks one_draw;  // equal pictures have equal latents
  one_draw.adjust = [](ditto::Batch& in) { std::fill(in.ids.begin(), in.ids.end(), 0); };
  return {{small_autoencoder(), model_needs({3, 8, 4}, 3), one_draw},
          {small_autoencoder({{"channels", std::vector<int64_t>{4, 8, 8}},
                              {"groups", number(2)},
                              {"layers", number(2)},
                              {"latent", number(3)},
                              {"middle_attention", false},
                              {"quant", false},
                              {"post_quant", false},
                              {"draws", false}}),
           model_needs({3, 16, 8}, 3)}};
}

// Two levels, the first with transformers.
OptionValues small_unet(OptionValues more = {}) {
  using Names = std::vector<std::string>;
  more.insert({{"block_out_channels", std::vector<int64_t>{8, 16}},
               {"down_block_types", Names{"CrossAttnDownBlock2D", "DownBlock2D"}},
               {"up_block_types", Names{"UpBlock2D", "CrossAttnUpBlock2D"}},
               {"layers_per_block", std::vector<int64_t>{1}},
               {"attention_head_dim", std::vector<int64_t>{4}},
               {"norm_num_groups", number(4)},
               {"text_tokens", number(9)}});
  return more;
}

std::vector<ModelCase> unet_sd_cases() {
  const auto plain = model_needs({3, 8, 4}, 3, 0, 12), labelled = model_needs({4, 4, 8}, 4, 10, 12);
  auto pooled = plain, numbers = plain, moment = plain, identity = plain;
  pooled.inputs.push_back({"text_pooled", at::kFloat, {9}, "a whole text"});
  auto sized = pooled;
  sized.inputs.push_back({"time_ids", at::kFloat, {5}, "sizes"});
  numbers.inputs.push_back({"label", at::kFloat, {7}, "numbers"});
  moment.inputs.push_back({"label", at::kFloat, {}, "a time"});
  identity.inputs.push_back({"label", at::kFloat, {32}, "a condition"});
  const OptionValues text_time{{"addition_embed_type", text("text_time")}, {"addition_time_embed_dim", number(4)}};
  auto with_sizes = text_time, with_empty = text_time;
  with_sizes.merge(OptionValues{{"null_text", text("zero")}, {"use_linear_projection", true}});
  with_empty.merge(OptionValues{{"null_text", text("empty")}, {"pixels", number(16)}});
  std::vector<ModelCase> cases{{small_unet(), plain},
                               {small_unet({{"only_cross_attention", std::vector<int64_t>{1, 0}},
                                            {"num_class_embeds", number(10)},
                                            {"text_mask", true},
                                            {"upcast_attention", true},
                                            {"dropout", OptionValue(0.25)}}),
                                labelled},
                               {small_unet(with_empty), pooled},
                               {small_unet(with_sizes), sized},
                               {small_unet({{"class_embed_type", text("projection")},
                                            {"projection_class_embeddings_input_dim", number(7)},
                                            {"resnet_time_scale_shift", text("scale_shift")}}),
                                numbers},
                               {small_unet({{"class_embed_type", text("timestep")}}), moment},
                               {small_unet({{"class_embed_type", text("identity")}}), identity}};
  // There is one empty text; classes and sizes stay where a text is dropped, and equal samples drop the same numbers.
  for (auto& one : cases)
    one.checks.adjust = [](ditto::Batch& in) {
      std::fill(in.ids.begin(), in.ids.end(), 0);
      for (const char* name : {"text_empty", "text_pooled_empty", "label", "time_ids"})
        if (in.has(name)) in[name] = in.at(name).slice(0, 0, 1).expand_as(in.at(name)).contiguous();
    };
  return cases;
}

std::map<std::string, std::vector<ModelCase>> model_cases() {
  return {{"autoencoder_kl", autoencoder_cases()},
          {"dit", dit_cases()},
          {"dit_text", dit_text_cases()},
          {"pixart", pixart_cases()},
          {"uvit", pictures({tiny({{"convolution", true}}), tiny({{"time_mlp", true}, {"convolution", false}})})},
          {"jit",
           pictures({tiny({{"context_tokens", number(3)}, {"context_start", number(1)}, {"bottleneck", number(8)}})})},
          {"st_dit", st_dit_cases()},
          {"latte", latte_cases()},
          {"nemo_dit", nemo_cases({}, "positions", "factorised")},
          {"moviegen", nemo_cases({{"hidden", number(24)}}, "cross", "nemo")},
          {"mmdit", mmdit_cases()},
          {"flux", flux_cases()},
          {"unet_sd", unet_sd_cases()},
          {"wan", wan_cases()},
          {"imagen_unet", imagen_cases()},
          {"imagen_efficient_unet", imagen_efficient_cases()},
          {"dit_moe", dit_moe_cases()}};
}

}  // namespace

TEST_CASE("every model keeps its promises") {
  const auto table = model_cases();
  for (const auto& [id, path] : plugins_of("models")) {
    const auto it = table.find(id);
    for (const ModelCase& test : it == table.end() ? pictures({{}}) : it->second)
      passes(ditto::testing::check_model(path, test.needs, test.options, test.checks));
  }
}

TEST_CASE("under one the models call the op table for all but single operations") {
  const auto table = model_cases();
  for (const auto& [id, path] : plugins_of("models"))
    for (const ModelCase& test : table.count(id) ? table.at(id) : std::vector<ModelCase>()) {
      if (id == "autoencoder_kl") continue;  // it is refused by name
      CAPTURE(id);
      std::string said;
      for (const auto& name : ditto::testing::inexact_calls(path, test.needs, test.options)) said += name + " ";
      CHECK_MESSAGE(said.empty(), said);
    }
}

TEST_CASE("every objective keeps its promises") {
  const Variants table{
      {"autoencoder",
       {{}, {{"loss", text("l2")}, {"kl", OptionValue(0.0)}}, {{"loss", text("huber")}, {"kl", OptionValue(0.01)}}}},
      {"diffusion", {{}, {{"condition_dropout", OptionValue(0.0)}}}},
      {"distill", {{}, {{"data", OptionValue(0.5)}}}},
      {"repa", {{{"hidden", number(8)}}, {{"block", number(2)}, {"network_block", number(3)}}}}};
  const std::map<std::string, ditto::testing::ObjectiveChecks> checks{{"autoencoder", {.scheduled = false}},
                                                                      {"distill", {.least_at_target = false}}};
  for (const auto& [id, path] : plugins_of("objectives")) {
    const auto it = checks.find(id);
    for (const OptionValues& options : variants(table, id))
      passes(ditto::testing::check_objective(path, options,
                                             it == checks.end() ? ditto::testing::ObjectiveChecks{} : it->second));
  }
}

TEST_CASE("every parallel strategy trains what one rank trains") {
  const OptionValue replicated = text("replicated");
  const Variants table{{"fsdp", {{}, {{"prefetch", false}}}},
                       {"pipeline", {{}, {{"virtual_stages", number(2)}, {"pipeline_conditioning", replicated}}}},
                       {"recompute", {{}, {{"recompute", text("attention")}, {"recompute_every", number(2)}}}},
                       {"tensor", {{}, {{"sequence", true}}}}};
  const std::map<std::string, ditto::testing::ParallelChecks> degrees{
      {"ddp", {{2, 3}}}, {"fsdp", {{2, 3}}}, {"ring", {{2, 3}}}};
  for (const auto& [id, path] : plugins_of("parallel")) {
    const auto it = degrees.find(id);
    for (const OptionValues& options : variants(table, id))
      passes(ditto::testing::check_parallel(path, options,
                                            it == degrees.end() ? ditto::testing::ParallelChecks{} : it->second));
  }
}

TEST_CASE("every scheduler keeps its promises") {
  const Variants table{
      {"ddpm_continuous",
       {{{"prediction", text("v")}},
        {{"log_snr", text("linear")}, {"weight", text("min_snr")}, {"loss", text("huber")}},
        {{"prediction", text("x0")}, {"loss", text("l1")}}}},
      {"edm", {{}, {{"loss", text("l1")}}, {{"loss", text("huber")}, {"rho", OptionValue(3.0)}}}},
      {"gvp",
       {{},
        {{"prediction", text("noise")}, {"train_eps", OptionValue(1e-3)}, {"sample_eps", OptionValue(1e-3)}},
        {{"prediction", text("score")},
         {"weight", text("likelihood")},
         {"train_eps", OptionValue(1e-3)},
         {"sample_eps", OptionValue(1e-3)}}}},
      {"iddpm",
       {{},
        {{"variance", text("fixed_large")}},
        {{"timesteps", number(100)}},
        {{"betas", text("cosine")}, {"weight", text("debiased")}},
        {{"betas", text("scaled_linear")}, {"prediction", text("v")}, {"zero_terminal_snr", true}},
        {{"betas", text("sigmoid")}, {"prediction", text("x0")}, {"variance", text("fixed_small")}}}},
      {"rectified_flow",
       {{},
        {{"convention", text("data_at_one")}},
        {{"times", text("logit_normal")}, {"shift", OptionValue(3.0)}},
        {{"shift_by", text("area")}},
        {{"shift_by", text("exponential")}, {"shift", OptionValue(2.0)}}}},
      {"vp", {{}, {{"prediction", text("score")}, {"weight", text("velocity")}}, {{"prediction", text("noise")}}}}};
  for (const auto& [id, path] : plugins_of("schedulers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_scheduler(path, options));
}

TEST_CASE("every sampler keeps its promises") {
  const Variants table{
      {"ddim", {{}, {{"eta", OptionValue(1.0)}}}},
      {"dopri5", {{}, {{"rtol", OptionValue(1e-6)}, {"atol", OptionValue(1e-9)}}}},
      {"dpmpp_2m_sde", {{}, {{"eta", OptionValue(0.5)}, {"solver", text("heun")}}}},
      {"heun_edm", {{}, {{"s_churn", OptionValue(40.0)}}}},
      {"sde_euler",
       {{}, {{"diffusion", text("linear")}, {"last_step", text("euler")}, {"last_step_size", OptionValue(0.01)}}}},
      {"unipc", {{}, {{"order", number(3)}}, {{"variant", text("bh1")}}}}};
  for (const auto& [id, path] : plugins_of("samplers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_sampler(path, options));
}

TEST_CASE("every guidance keeps its promises") {
  const OptionValue scale = 4.0, weight = text("weight");
  const OptionValues interval{{"scale", scale}, {"from", OptionValue(0.2)}, {"to", OptionValue(20.0)}};
  const Variants table{{"cfg",
                        {{},
                         {{"scale", scale}},
                         interval,
                         {{"scale", scale}, {"rescale", OptionValue(0.7)}},
                         {{"scale", scale}, {"channels", text("3")}},
                         {{"scale", OptionValue(1.5)}, {"form", weight}}}},
                       {"autoguidance", {{}, interval}}};
  for (const auto& [id, path] : plugins_of("guidance"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_guidance(path, options));
}

TEST_CASE("every cache keeps its promises") {
  const OptionValue coefficients = std::vector<double>{1, 0};
  const Variants table{{"first_block", {{}, {{"threshold", OptionValue(0.0)}}}},
                       {"teacache", {{}, {{"threshold", OptionValue(0.6)}, {"coefficients", coefficients}}}}};
  for (const auto& [id, path] : plugins_of("caches"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_cache(path, options));
}

TEST_CASE("every optimizer keeps its promises") {
  const OptionValues decay{{"weight_decay", OptionValue(0.1)}};
  const Variants table{
      {"adafactor", {{}, decay}},
      {"adamw", {{}, decay}},
      {"adamw8bit", {{}, decay}},
      {"lion", {{}, decay}},
      {"schedule_free", {{}, decay}},
      {"muon",
       {{}, {{"nesterov", OptionValue(false)}}, {{"precision", text("bf16")}, {"adjust_lr", text("match_rms_adamw")}}}},
      {"sgd",
       {{}, {{"momentum", OptionValue(0.0)}}, {{"nesterov", OptionValue(true)}, {"weight_decay", OptionValue(0.1)}}}}};
  for (const auto& [id, path] : plugins_of("optimizers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_optimizer(path, options));
}

TEST_CASE("every kernel agrees with the reference, forward and backward") {
  for (const auto& [id, path] : plugins_of("kernels")) passes(ditto::testing::check_kernels(path));
}

TEST_CASE("every source of data keeps its promises") {
  using Texts = std::vector<std::string>;
  const OptionValues digits{{"shards", Texts{"train-*.tar"}},
                            {"validation_shards", Texts{"validation-*.tar"}},
                            {"image", Texts{"png"}},
                            {"classes", number(10)},
                            {"channels", number(1)}};
  const auto golden = std::string(DITTO_SOURCE_DIR) + "/tests/golden/formats/";
  const OptionValues pictures{{"table", OptionValue(golden + "pictures.csv")},
                              {"validation_table", OptionValue(golden + "pictures.csv")},
                              {"label", text("class")},
                              {"caption", text("text")},
                              {"classes", number(3)},
                              {"sizes", Texts{"8x8", "8x16"}}};
  const Variants table{{"webdataset", {digits}},
                       {"table", {pictures}},
                       {"synthetic",
                        {{},
                         {{"content", text("clusters")}},
                         {{"content", text("noise")}, {"frames", number(3)}},
                         {{"frames", number(4)}, {"text_tokens", number(5)}}}}};
  for (const auto& [id, path] : plugins_of("data"))
    for (const OptionValues& options : variants(table, id))
      passes(ditto::testing::check_source(path, options, std::string(DITTO_SOURCE_DIR) + "/data/digits"));
}

// 70 samples, each of a file of its own: what they are made of is not looked at.
TEST_CASE("a source's fingerprint knows every file's size, first and last bytes") {
  using Texts = std::vector<std::string>;
  constexpr int kFiles = 70;
  const auto png = ditto::test::read_text(ditto::test::golden_format("rgb.png"));
  const auto number_of = [](int i) { return std::to_string(1000 + i); };
  const ditto::test::TemporaryFolder pictures, videos, shards;
  std::string rows = "path\n", frames = "path,frames\n";
  for (int i = 0; i < kFiles; ++i) {
    ditto::test::write_text(pictures / (number_of(i) + ".png"), png);
    rows += number_of(i) + ".png\n";
    fs::create_directories(videos / number_of(i));
    ditto::test::write_text(videos / (number_of(i) + "/0.png"), png);
    frames += number_of(i) + ",1\n";
    ditto::formats::TarWriter tar(shards / (number_of(i) + ".tar"));
    tar.add(number_of(i) + ".png", png);
    tar.finish();
  }
  ditto::test::write_text(pictures / "t.csv", rows);
  ditto::test::write_text(videos / "t.csv", frames);
  const std::vector<int64_t> size{8, 8};
  const auto check = [](const std::string& id, const OptionValues& options, const fs::path& folder) {
    const auto path = fs::path(ditto::test::plugin_folder()) / ("data/lib" + id + ".so");
    passes(ditto::testing::check_source_files(path, options, folder));
  };
  check("table", {{"table", text("t.csv")}, {"size", size}}, pictures.path());
  check("table", {{"table", text("t.csv")}, {"size", size}, {"frames", text("frames")}}, videos.path());
  check("webdataset", {{"shards", Texts{"*.tar"}}, {"label", text("none")}, {"size", size}}, shards.path());
}
