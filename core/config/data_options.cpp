#include "core/config/data_options.h"

namespace ditto {

void LoaderOptions::read(OptionReader& option) {
  option("threads", threads, "threads that read and decode; 0: the training thread does, when a batch is asked for")
      .between(0, 256)
      .changes(Effect::nothing);
  option("prefetch", prefetch, "micro-batches read ahead").between(1, 1024).changes(Effect::nothing);
  option("encode_ahead", encode_ahead,
         "1: while a step is computed, a thread of its own encodes the next one; 0: a step encodes its own first")
      .one_of({0, 1})
      .changes(Effect::nothing)
      .noted_if_given();
  option("max_bad", max_bad, "samples that may fail to decode; one more ends the run")
      .at_least(0)
      .changes(Effect::nothing);
  option(
      "stall_s", stall_s,
      "seconds without data until a line says which thread waits for what, and again each time they double; 0: never")
      .between(0.0, 1e6)
      .changes(Effect::nothing);
  option("strict", strict, "end the run at the first sample that does not decode, and at a damaged shard")
      .changes(Effect::nothing);
  option("shuffle", shuffle, "a new order every epoch; false: as stored");
  option("flip", flip, "mirror every other picture left to right, by sample id");
  option(
      "encoded", encoded,
      "a folder that `ditto encode` has made of this recipe, which is read in the place of its data; its encoders then "
      "do the rest alone")
      .changes(Effect::bits)
      .place()
      .noted_if_given();
}

void BatchOptions::read(OptionReader& option) {
  option("plan", plan,
         "how a step's samples are grouped into micro-batches: \"contiguous\" as they come; \"buckets\": of one size "
         "each; \"packs\": any sizes in one row of tokens, as full as batch.tokens allows")
      .one_of({"contiguous", "buckets", "packs"})
      .changes(Effect::bits);
  option("tokens", tokens,
         "tokens of a micro-batch at most; packs need it; buckets take fewer large samples by it. 0: no limit")
      .at_least(0)
      .changes(Effect::bits);
  option("sizes", sizes,
         "the sizes that are learned from, as [\"32x32\", \"16x32x48\"]; samples of others are left out and counted. "
         "Empty: all");
  option("weigh_by", weigh_by, "what weighs a sample's loss in the mean of a step: all alike, or by its tokens")
      .one_of({"samples", "tokens"});
  if (plan == "packs" && tokens == 0)
    option.reject("tokens", "= 0 says no length for packs", "set batch.tokens, as 4096");
  if (plan == "contiguous" && tokens > 0)
    option.reject("tokens", "limits nothing of plan = \"contiguous\"", "choose \"buckets\" or \"packs\"");
}

}  // namespace ditto
