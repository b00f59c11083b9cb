// Claim (data): Batches are the same for any number of loader threads; a sample that does not decode moves no other.

#include "core/data/loader.h"

#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include <ditto/error.h>

#include "core/data/order.h"

using ditto::Batch;
using ditto::DataWait;
using ditto::Error;
using ditto::ErrorKind;
using ditto::Loader;
using ditto::LoaderOptions;
using ditto::Places;

namespace {

// Sample i is a 1 x 2 x 3 picture of i + 0 … 5, with label i and a text of i % 4 letters.
class Counting final : public ditto::Source {
 public:
  explicit Counting(int64_t n) : n_(n) {}
  std::set<int64_t> damaged, throws_other;
  std::vector<std::string> said;
  bool wrong_shape = false;
  int64_t of_classes = 0;
  std::chrono::microseconds delay{0};
  mutable std::atomic<int64_t> reads{0};

  int64_t size() const override { return n_; }
  ditto::TensorSpecs makes() const override {
    return {{"image", at::kFloat, {1, 2, 3}, ""},
            {"label", at::kLong, {}, "", of_classes},
            {"caption", at::kByte, {-1}, ""}};
  }
  std::string fingerprint() const override { return "counting"; }
  std::vector<std::string> warnings() const override { return said; }
  ditto::Sample read(int64_t index) const override {
    ++reads;
    // Uneven, so that threads finish out of order.
    if (delay.count() > 0) std::this_thread::sleep_for(delay * (index % 3));
    if (damaged.count(index)) throw Error(ErrorKind::data, "shard:" + std::to_string(index), "is damaged");
    if (throws_other.count(index)) throw std::runtime_error("out of order");
    ditto::Sample sample;
    sample.place = "shard:" + std::to_string(index);
    sample.tensors["image"] = torch::arange(6, torch::kFloat).view({1, 2, 3}) + static_cast<double>(index);
    if (wrong_shape) sample.tensors["image"] = torch::zeros({1, 3, 3});
    sample.tensors["label"] = torch::scalar_tensor(index, torch::kLong);
    sample.tensors["caption"] = torch::full({index % 4}, 'a', torch::kByte);
    return sample;
  }

 private:
  int64_t n_;
};

LoaderOptions with_threads(int64_t threads) {
  LoaderOptions options;
  options.threads = threads;
  return options;
}

std::string error_of(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("no Error was thrown");
  return {};
}

bool equal(const Batch& a, const Batch& b) {
  if (a.ids != b.ids || a.weights != b.weights || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors)
    if (!b.has(name) || !tensor.equal(b.at(name))) return false;
  return true;
}

std::vector<Batch> run(const LoaderOptions& options, bool ahead, int64_t first = 0) {
  auto source = std::make_shared<Counting>(23);
  source->delay = std::chrono::microseconds(200);
  source->damaged = {5};
  Loader loader(source, options, 9, {});
  if (ahead) loader.expect([&](int64_t k) { return std::optional(Places{first + 7 * k, 7}); });
  std::vector<Batch> out;
  for (int64_t place = first; place < 70; place += 7) out.push_back(loader.next({place, 7}));
  return out;
}

}  // namespace

TEST_CASE("batches are the same for any number of threads, with read-ahead or without") {
  const auto reference = run(with_threads(0), false);
  for (const int64_t threads : {1, 2, 5}) {
    for (const bool ahead : {false, true}) {
      const auto other = run(with_threads(threads), ahead);
      REQUIRE(other.size() == reference.size());
      for (size_t i = 0; i < other.size(); ++i) CHECK(equal(other[i], reference[i]));
    }
  }
}

TEST_CASE("a batch knows how many places of each text count: up to the last that its mask shows") {
  struct Texts final : ditto::Source {
    int64_t size() const override { return 4; }
    ditto::TensorSpecs makes() const override {
      return {{"text", at::kFloat, {-1, 2}, ""}, {"text_mask", at::kBool, {-1}, ""}, {"caption", at::kByte, {-1}, ""}};
    }
    std::string fingerprint() const override { return "texts"; }
    ditto::Sample read(int64_t index) const override {
      if (index == 3) throw Error(ErrorKind::data, "text 3", "is damaged");
      ditto::Sample sample;
      sample.place = "text " + std::to_string(index);
      sample.tensors["text"] = torch::ones({5, 2});
      sample.tensors["text_mask"] = torch::tensor({index == 0, index < 2, false, index == 0, false});
      sample.tensors["caption"] = torch::ones({index}, torch::kByte);
      return sample;
    }
  };
  auto options = with_threads(0);
  options.shuffle = false;
  Loader loader(std::make_shared<Texts>(), options, 9, {});
  const auto batch = loader.next({0, 4});
  // A hole in the middle stays; of what shows nothing, or is not there, none count.
  CHECK(batch.lengths ==
        std::map<std::string, std::vector<int64_t>>{{"text", {4, 2, 0, 0}}, {"caption", {0, 1, 2, 0}}});
  CHECK(batch.slice(1, 3).lengths.at("text") == std::vector<int64_t>{2, 0});
}

TEST_CASE("a loader that starts at a place continues what another began") {
  const auto whole = run(with_threads(2), true);
  const auto rest = run(with_threads(2), true, 35);
  REQUIRE(rest.size() == 5);
  for (size_t i = 0; i < rest.size(); ++i) CHECK(equal(rest[i], whole[5 + i]));
}

TEST_CASE("samples stand in the order's places, with their ids") {
  auto source = std::make_shared<Counting>(10);
  Loader loader(source, with_threads(2), 3, {});
  const auto batch = loader.next({8, 6});  // across the end of an epoch
  CHECK(batch.size() == 6);
  const ditto::Order order(10, 3, ditto::Shuffle::on);
  for (int64_t i = 0; i < 6; ++i) {
    CHECK(batch.ids[static_cast<size_t>(i)] == 8 + i);
    const int64_t index = order.index(8 + i);
    CHECK(batch.at("label")[i].item<int64_t>() == index);
    CHECK(batch.at("image")[i][0][1][2].item<float>() == static_cast<float>(index + 5));
    CHECK(batch.at("caption")[i].count_nonzero().item<int64_t>() == index % 4);
  }
}

TEST_CASE("a sample that does not decode keeps its place empty and moves no other") {
  auto source = std::make_shared<Counting>(10);
  auto options = with_threads(2);
  options.shuffle = false;
  std::vector<std::string> log;
  source->damaged = {2, 4};
  Loader loader(source, options, 3, [&](const std::string& line) { log.push_back(line); });
  const auto batch = loader.next({0, 6});
  CHECK(batch.weights == std::vector<double>{1, 1, 0, 1, 0, 1});
  CHECK(batch.at("image")[2].count_nonzero().item<int64_t>() == 0);
  CHECK(batch.at("label")[3].item<int64_t>() == 3);
  CHECK(batch.at("label")[5].item<int64_t>() == 5);
  REQUIRE(log.size() == 2);
  CHECK(log[0].find("shard:2: is damaged") != std::string::npos);
  loader.next({10, 6});  // the same two, an epoch later
  CHECK(log.size() == 2);
}

TEST_CASE("more bad samples than max_bad end the run, naming the first") {
  auto source = std::make_shared<Counting>(10);
  source->damaged = {1, 3, 5};
  auto options = with_threads(2);
  options.shuffle = false;
  options.max_bad = 2;
  Loader loader(source, options, 3, {});
  CHECK_NOTHROW(loader.next({0, 5}));
  const auto message = error_of([&] { loader.next({5, 5}); }, ErrorKind::data);
  CHECK(message.find("loader.max_bad is 2") != std::string::npos);
  CHECK(message.find("shard:1") != std::string::npos);
}

TEST_CASE("samples that were left out before a run went on count too, each once") {
  auto source = std::make_shared<Counting>(10);
  source->damaged = {1, 3};
  auto options = with_threads(0);
  options.shuffle = false;
  options.max_bad = 2;
  Loader goes_on(source, options, 3, {});
  goes_on.had_left_out({1, 7});
  CHECK_NOTHROW(goes_on.next({0, 3}));
  CHECK(goes_on.left_out() == std::set<int64_t>{1, 7});
  const auto message = error_of([&] { goes_on.next({3, 3}); }, ErrorKind::data);
  CHECK(message.find("3 samples could not be decoded, loader.max_bad is 2; the first: shard:1") != std::string::npos);
  options.max_bad = 1;
  Loader lowered(source, options, 3, {});
  lowered.had_left_out({1, 7});
  CHECK(error_of(
            [&] {
              lowered.next({4, 3});
            },
            ErrorKind::data)
            .find("all of them came before the run went on") != std::string::npos);
}

TEST_CASE("nothing of a batch is left unwritten: what does not decode is zeros in every tensor") {
  struct EmptyIsNan {  // LibTorch fills what it only reserves, for this one's life
    EmptyIsNan() { set(true); }
    ~EmptyIsNan() { set(false); }
    static void set(bool on) {
      at::globalContext().setDeterministicAlgorithms(on, false);
      at::globalContext().setDeterministicFillUninitializedMemory(on);
    }
  } const empty_is_nan;
  REQUIRE(torch::empty({4}).isnan().all().item<bool>());
  struct Sides final : ditto::Source {  // of two heights
    int64_t size() const override { return 6; }
    ditto::TensorSpecs makes() const override {
      return {{"image", at::kFloat, {1, ditto::kOwnSide, 2}, ""},
              {"time", at::kDouble, {}, ""},
              {"text", at::kFloat, {-1}, ""}};
    }
    ditto::SampleInfo info(int64_t index) const override { return {{"image", {1, 1 + index % 2, 2}}}; }
    std::string fingerprint() const override { return "sides"; }
    ditto::Sample read(int64_t index) const override {
      if (index == 1 || index == 4) throw Error(ErrorKind::data, "sample " + std::to_string(index), "is damaged");
      const auto value = static_cast<double>(index + 1);
      return {{{"image", torch::full({1, 1 + index % 2, 2}, value)},
               {"time", torch::scalar_tensor(value, torch::kDouble)},
               {"text", torch::full({index}, value)}},
              "sample " + std::to_string(index)};
    }
  };
  for (const int64_t threads : {0, 2}) {
    auto options = with_threads(threads);
    options.shuffle = false;
    Loader loader(std::make_shared<Sides>(), options, 3, {});
    const auto batch = loader.next({0, 6});
    REQUIRE(batch.parts.size() == 2);
    for (const auto& part : batch)
      for (size_t row = 0; row < part.ids.size(); ++row)
        for (const auto& [name, numbers] : std::map<std::string, int64_t>{
                 {"image", 2 * (1 + part.ids[row] % 2)}, {"time", 1}, {"text", part.ids[row]}}) {
          CAPTURE(name);
          const auto id = part.ids[row];
          const auto sum = static_cast<double>(id == 1 || id == 4 ? 0 : (id + 1) * numbers);
          CHECK(part.at(name)[static_cast<int64_t>(row)].sum().item<double>() == sum);  // nan where nothing was written
        }
  }
}

TEST_CASE("a label beyond the classes is a mistake of the recipe, never a bad sample") {
  const auto source = std::make_shared<Counting>(12);
  source->of_classes = 11;
  for (const int64_t threads : {0, 3}) {
    auto options = with_threads(threads);
    options.shuffle = false;
    Loader loader(source, options, 1, {});
    CHECK(loader.next({0, 11}).weights == std::vector<double>(11, 1.0));
    const auto message = error_of([&] { loader.next({8, 4}); }, ErrorKind::config);
    for (const char* part : {"shard:11", "label is 11", "there are 11: 0 to 10", "data.classes"})
      CHECK(message.find(part) != std::string::npos);
  }
}

TEST_CASE("with strict the first bad sample ends the run") {
  auto source = std::make_shared<Counting>(10);
  source->damaged = {3};
  auto options = with_threads(2);
  options.shuffle = false;
  options.strict = true;
  Loader loader(source, options, 3, {});
  CHECK_NOTHROW(loader.next({0, 3}));
  CHECK(error_of([&] { loader.next({3, 3}); }, ErrorKind::data).find("shard:3: is damaged") != std::string::npos);
}

TEST_CASE("a source's warnings are logged, and with strict end the run") {
  auto source = std::make_shared<Counting>(10);
  source->said = {"a.tar: cut off at byte 512"};
  std::vector<std::string> log;
  const Loader loader(source, with_threads(1), 3, [&](const std::string& line) { log.push_back(line); });
  CHECK(log == source->said);
  auto strict = with_threads(1);
  strict.strict = true;
  CHECK(error_of([&] { Loader(source, strict, 3, {}); }, ErrorKind::data).find("cut off at byte 512") !=
        std::string::npos);
}

TEST_CASE("other exceptions of a source come out of next, for their own batch") {
  for (const int64_t threads : {0, 2}) {
    auto source = std::make_shared<Counting>(10);
    source->throws_other = {7};
    auto options = with_threads(threads);
    options.shuffle = false;
    Loader loader(source, options, 3, {});
    loader.expect([](int64_t k) { return std::optional(Places{5 * k, 5}); });
    CHECK_NOTHROW(loader.next({0, 5}));
    CHECK_THROWS_WITH_AS(loader.next({5, 5}), "out of order", std::runtime_error);
  }
}

TEST_CASE("a source that breaks its own spec is refused as a plugin's fault") {
  auto source = std::make_shared<Counting>(10);
  source->wrong_shape = true;
  Loader loader(source, with_threads(1), 3, {});
  const auto message = error_of([&] { loader.next({0, 2}); }, ErrorKind::plugin);
  CHECK(message.find("[1, 3, 3]") != std::string::npos);
  CHECK(message.find("[1, 2, 3]") != std::string::npos);
}

TEST_CASE("flips depend on the sample's id alone, and mirror about half of the pictures") {
  auto source = std::make_shared<Counting>(1000);
  auto options = with_threads(2);
  options.flip = true;
  Loader loader(source, options, 3, {}), other(source, options, 3, {});
  const auto batch = loader.next({0, 1000});
  const auto mirrored = batch.at("image").select(1, 0).select(1, 0).select(1, 0) >
                        batch.at("image").select(1, 0).select(1, 0).select(1, 2);
  const auto count = mirrored.sum().item<int64_t>();
  CHECK(count > 430);
  CHECK(count < 570);
  const auto part = other.next({300, 100});
  CHECK(part.at("image").equal(batch.at("image").slice(0, 300, 400)));
  const auto again = other.next({1300, 100});  // the same samples' next visit: drawn anew
  CHECK(again.size() == 100);
  CHECK(ditto::validation_options(options).flip == false);
  CHECK(ditto::validation_options(options).shuffle == false);
}

TEST_CASE("requests are read ahead, no further than prefetch allows") {
  auto source = std::make_shared<Counting>(1000);
  auto options = with_threads(2);
  options.prefetch = 3;
  Loader loader(source, options, 3, {});
  loader.expect([](int64_t k) { return std::optional(Places{10 * k, 10}); });
  for (int i = 0; i < 2000 && source->reads < 30; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(source->reads == 30);
  const double before = loader.waited_s();
  loader.next({0, 10});
  CHECK(loader.waited_s() > before);
  for (int i = 0; i < 2000 && source->reads < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(source->reads == 40);
}

TEST_CASE("a loader with work under way can be destroyed") {
  auto source = std::make_shared<Counting>(1000);
  source->delay = std::chrono::milliseconds(1);
  for (int i = 0; i < 5; ++i) {
    Loader loader(source, with_threads(3), 3, {});
    loader.expect([](int64_t k) { return std::optional(Places{50 * k, 50}); });
  }
  CHECK(source->reads < 1000);
}

TEST_CASE("data that does not come is said, with which thread reads what for how long, and again as the time doubles") {
  struct Slow final : ditto::Source {
    int64_t size() const override { return 8; }
    ditto::TensorSpecs makes() const override { return {{"image", at::kFloat, {1}, ""}}; }
    std::string fingerprint() const override { return "slow"; }
    ditto::Sample read(int64_t index) const override {
      if (index == 5) std::this_thread::sleep_for(std::chrono::milliseconds(900));
      return {{{"image", torch::zeros({1})}}, "sample"};
    }
  };
  for (const int64_t threads : {0, 1}) {
    auto options = with_threads(threads);
    options.shuffle = false;
    options.stall_s = 0.2;
    std::vector<std::string> said;  // while next() waits: no other thread looks
    Loader loader(std::make_shared<Slow>(), options, 9, [&](const std::string& line) { said.push_back(line); });
    loader.next({0, 4});
    CHECK(said.empty());
    loader.next({4, 4});
    CHECK(loader.waited_s() > 0.85);
    const auto lines = said.size();
    CHECK(lines >= 2);  // after 0.2 s and 0.4 s, maybe 0.8 s
    CHECK(lines <= 3);
    for (const auto& line : said) {
      CAPTURE(line);
      CHECK(line.find(threads == 0 ? "s: the training thread reads the data's sample 5 for 0."
                                   : "s: loader thread 0 reads the data's sample 5 for 0.") != std::string::npos);
    }
    loader.next({0, 4});
    CHECK(said.size() == lines);
  }
}

namespace {

// Of `steps` steps of a second after the first, what was said.
std::vector<std::string> said_of(DataWait& wait, int steps, double share) {
  std::vector<std::string> lines;
  for (int i = 0; i < steps; ++i)
    if (const auto line = wait.add(share, 1); !line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("a wait of over a tenth of the steps is said once, after ten seconds, with the remedy for this machine") {
  DataWait wait(2, 16);
  wait.add(30, 30);  // the first step of a process
  CHECK(said_of(wait, 9, 0.25).empty());
  const auto lines = said_of(wait, 50, 0.25);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find(
            "training waits for data 25 % of its time (of 10 steps); raise loader.threads (2 now, of 16 processors)") ==
        0);
  DataWait none(0, 16), all(16, 16);
  none.add(0, 1), all.add(0, 1);
  CHECK(said_of(none, 10, 0.11).at(0).find("set loader.threads = 2, or more") != std::string::npos);
  CHECK(said_of(all, 10, 0.11).at(0).find("loader.threads is 16, and there are 16 processors") != std::string::npos);
}

TEST_CASE("a wait below that, short runs, and one slow moment among many are not said") {
  DataWait wait(2, 16);
  CHECK(said_of(wait, 200, 0.1).empty());
  DataWait quick(2, 16);
  for (int i = 0; i < 500; ++i) CHECK(quick.add(0.01, 0.0199).empty());  // under ten seconds
  DataWait once(2, 16);
  once.add(0, 1);
  CHECK(once.add(0.9, 1).empty());
  CHECK(said_of(once, 100, 0.001).empty());
}
