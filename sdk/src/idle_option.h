// What OptionReader throws where options do not go together.
#pragma once

#include <string>

#include <ditto/error.h>

namespace ditto {

// By reject: for a host that reads a section before the weights that say its other options.
class DITTO_API RejectedOption : public Error {
 public:
  explicit RejectedOption(const Error& error);
  ~RejectedOption() override;
};

// By only_if: for a host that lets such an option go where somebody has overridden the one that it belongs to.
class DITTO_API IdleOption : public Error {
 public:
  IdleOption(const Error& error, std::string option);
  ~IdleOption() override;

  const std::string& option() const { return option_; }  // its name, without the section's

 private:
  std::string option_;
};

}  // namespace ditto
