// One process does several things in a row, each as a program of its own would: it becomes itself anew.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace ditto {

// Who started this process keeps it by its number: signals, its death and its exit code are as if nothing had happened.
class Successor {
 public:
  // Of the program with these `arguments` (without its name), in the environment and with the open files of now: to be
  // made before anything changed them.
  explicit Successor(std::vector<std::string> arguments);
  // Becomes it, as number `next` (kNextVariable), with nothing of this process's memory. Stop signals that this process
  // answers wait until the successor answers them, and so does one that came before. Throws Error(config) with the
  // system's reason.
  [[noreturn]] void become(int next) const;

 private:
  std::vector<std::string> arguments_, environment_;
  std::set<int> files_;
};

// In a successor, once it answers stop signals: it takes those that came meanwhile.
void begin_as_successor();

}  // namespace ditto
