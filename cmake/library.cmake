# What engines link: libkvist.so, whose only symbols are those of kvist.h, and libkvist.a, which has them and the C++
# interface. Both are the same objects. They need the C library, the C++ library and nothing else.
#
#   find_package(kvist)  ->  kvist::c (the shared library, for C) and kvist::kvist (the archive, for C++)
#   pkg-config           ->  kvist and kvist-cpp
set(library_objects)
foreach(folder base memory pool wire client capi)
  list(APPEND library_objects $<TARGET_OBJECTS:kvist_${folder}>)
endforeach()

add_library(kvist_shared SHARED ${library_objects})
set_target_properties(kvist_shared PROPERTIES OUTPUT_NAME kvist EXPORT_NAME c VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/kvist.map)
# nodelete: a client's threads run in it, and threads of the engine keep what it stores for each.
target_link_options(kvist_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/capi/kvist.map -Wl,-z,nodelete
  -Wl,--as-needed)
if(KVIST_SANITIZE)
  target_link_options(kvist_shared PRIVATE -fsanitize=${KVIST_SANITIZE})
else()
  target_link_options(kvist_shared PRIVATE -Wl,--no-undefined)  # a sanitizer's own symbols come with the program
endif()

add_library(kvist_archive STATIC ${library_objects})
set_target_properties(kvist_archive PROPERTIES OUTPUT_NAME kvist EXPORT_NAME kvist)
target_compile_features(kvist_archive INTERFACE cxx_std_20)

foreach(library kvist_shared kvist_archive)
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${library} PUBLIC Threads::Threads)
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvist)
configure_package_config_file(cmake/kvist-config.cmake.in kvist-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(kvist-config-version.cmake COMPATIBILITY SameMinorVersion)
# Paths within the package are relative to where its pc file lies, so that a tree can be moved.
file(RELATIVE_PATH KVIST_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/kvist.pc.in kvist.pc @ONLY)
configure_file(cmake/kvist-cpp.pc.in kvist-cpp.pc @ONLY)

install(TARGETS kvist_shared kvist_archive EXPORT kvist)
# `cmake --install --strip` leaves archives alone, whose line tables are five times their code.
install(CODE "
  if(CMAKE_INSTALL_DO_STRIP)
    execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libkvist.a\" COMMAND_ERROR_IS_FATAL ANY)
  endif()")
install(DIRECTORY include/kvist TYPE INCLUDE)
install(EXPORT kvist NAMESPACE kvist:: FILE kvist-targets.cmake DESTINATION ${package_dir})
install(FILES ${CMAKE_BINARY_DIR}/kvist-config.cmake ${CMAKE_BINARY_DIR}/kvist-config-version.cmake
  DESTINATION ${package_dir})
install(FILES ${CMAKE_BINARY_DIR}/kvist.pc ${CMAKE_BINARY_DIR}/kvist-cpp.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
