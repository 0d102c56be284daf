// Where this build's command and its sources lie. They are compiled into one file, so that the objects of all others are the
// same in every clone and come from the compiler cache.
#pragma once

namespace kvist::test {

extern const char* const kCommand;       // build/kvist
extern const char* const kLibrary;       // build/libkvist.so.*
extern const char* const kSourceFolder;  // the clone

}  // namespace kvist::test
