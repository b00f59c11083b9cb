// The one error type of Ditto. No LibTorch here: the parsers of foreign bytes use it too.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <ditto/visibility.h>

namespace ditto {

// What kind of thing went wrong; decides the exit code.
enum class ErrorKind {
  config,       // a recipe, an option or the command line: exit code 2
  plugin,       // a plugin was refused, or failed: 3
  data,         // a sample, a shard, a picture: 4
  shape,        // tensors that do not fit together: 2 (the recipe's sizes made them)
  numeric,      // a loss or a gradient that is not finite, or that an audit finds wrong: 5
  distributed,  // a rank was lost, or a collective failed: 6
  checkpoint,   // saving or loading: 7
};

// A mistake of the user's, or of the world; thrown, never asserted. The message reads
// "WHERE: WHAT; REMEDY": the place (file:line:column, a tensor's name, a rank), what was found and what was
// expected there, and what to do. REMEDY may be empty where nothing can be done.
class DITTO_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view where, std::string_view what, std::string_view remedy = {});
  ~Error() override;

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return exit_code(kind_); }
  static int exit_code(ErrorKind kind);
  static const char* name(ErrorKind kind);

  // The same error with one more place in front: "block 7 of model 'dit': WHERE: WHAT; REMEDY".
  Error within(std::string_view place) const;

 private:
  Error(ErrorKind kind, const std::string& message);
  ErrorKind kind_;
};

}  // namespace ditto
