// ditto doctor
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apps/ditto/commands.h"
#include "core/doctor/doctor.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace {

struct DoctorArguments {
  std::string output = "runs";
  bool json = false;
};

}  // namespace

void add_doctor_command(CLI::App& app, CommandLine& line) {
  auto* command =
      app.add_subcommand("doctor", "Say what this machine and installation are, and what would trouble a run");
  auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("--output", arguments->output, "folder for runs, whose disk is tried")->capture_default_str();
  command->add_flag("--json", arguments->json, "for programs");
  command->footer("Example: ditto doctor --json\nExit code: 0, or 2 where a run would fail.");
  command->callback([arguments, &line] {
    const auto diagnosis = report::diagnose(arguments->output);
    std::cout << (arguments->json ? formats::ascii_json(report::to_json(diagnosis)) + "\n" : report::to_text(diagnosis))
              << std::flush;
    if (diagnosis.has_problem()) line.exit_code = 2;
  });
}

}  // namespace ditto
