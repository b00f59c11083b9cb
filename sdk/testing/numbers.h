// Numbers for the contract tests: made from names, and compared.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/batch.h>

namespace ditto::testing {

// Standard normal (or uniform in (0, 1)) numbers that depend on the name and the shape alone.
torch::Tensor normal(const std::string& name, const std::vector<int64_t>& shape, at::ScalarType dtype = at::kDouble);
torch::Tensor uniform(const std::string& name, const std::vector<int64_t>& shape);

// The largest difference over the largest number of `expected`; infinite where one is not finite.
double error_of(const torch::Tensor& found, const torch::Tensor& expected);
// What is wrong if the error is over `tolerance`, or shapes or dtypes differ; else empty. Tolerance 0: the same bits.
std::string difference(const torch::Tensor& found, const torch::Tensor& expected, double tolerance);
// What is wrong if a number is not finite; else empty.
std::string not_finite(const torch::Tensor& found);

// What is wrong if a tensor is not as makes() says: its shape, its dtype, its range; else empty.
std::string misfit(const torch::Tensor& found, const TensorSpec& spec);

std::string text(double value);
std::string first_line(const std::exception& error);  // of what it says, without a backtrace
std::string shape_text(at::IntArrayRef shape);

}  // namespace ditto::testing
