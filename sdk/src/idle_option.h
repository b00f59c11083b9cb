// What OptionReader::only_if throws, for a host that lets such an option go where somebody has overridden the one that
// it belongs to.
#pragma once

#include <string>

#include <ditto/error.h>

namespace ditto {

class DITTO_API IdleOption : public Error {
 public:
  IdleOption(const Error& error, std::string option);
  ~IdleOption() override;

  const std::string& option() const { return option_; }  // its name, without the section's

 private:
  std::string option_;
};

}  // namespace ditto
