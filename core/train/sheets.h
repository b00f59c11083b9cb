// The sheets of samples that a training draws on its way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/formats/picture/picture.h"
#include "core/sample/generate.h"

namespace ditto {

// Of a sheet without [[validate.picture]].
struct GridRequests {
  SampleRequests samples;
  std::vector<int64_t> of_data;      // the samples of the data whose conditions they have; none: classes in turn
  std::vector<std::string> prompts;  // their texts, where the data has them as such
};
// As many as validate.grid says, with seeds from 0 on. Of classes alone each in its turn, made up to whole rows where a
// column is a class; of all else what the held-out samples have or, where there are none, the first ones to learn from.
// `warn` hears of samples that cannot be read.
GridRequests grid_requests(Assembly& assembly, const std::function<void(const std::string&)>& warn);

// Throws Error(config) or Error(data) for what [[validate.picture]] asks for and the model does not take or cannot run,
// before anything is computed.
void check_pictures(Assembly& assembly);
// What the sheets will show, as sentences.
std::vector<std::string> sheet_notes(Assembly& assembly);

struct Sheet {
  std::vector<formats::Picture> frames;  // one; of videos each of its frames
  std::string request;                   // what its pictures were asked for by, JSON
};
// Called by all ranks.
Sheet draw_sheet(Assembly& assembly, const std::function<void(const std::string&)>& warn);

}  // namespace ditto
