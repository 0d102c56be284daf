#include "support/paths.h"

namespace kvist::test {

const char* const kCommand = KVIST_COMMAND;
const char* const kLibrary = KVIST_LIBRARY;
const char* const kSourceFolder = KVIST_SOURCE_FOLDER;

}  // namespace kvist::test
