// What a shared library shows. Everything else is built with hidden visibility.
#pragma once

#define DITTO_API __attribute__((visibility("default")))
