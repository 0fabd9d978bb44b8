# Compiler flags shared by every room.
#
# -ffp-contract=off: the compiler must not fuse a multiply and an add on its own; a row's bits are part of the
# contract, so a fused operation is written where it is wanted.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror -fno-math-errno -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports an impossible overlap for `"literal" + std::string` (GCC bug 105651, fixed in 13).
  add_compile_options(-Wno-restrict)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(DEEPINFER_DEBUG_CHECKS=1)
endif()
if(DEEPINFER_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(DEEPINFER_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT DEEPINFER_SANITIZE STREQUAL "")
  message(FATAL_ERROR "DEEPINFER_SANITIZE must be 'address', 'thread' or empty, not '${DEEPINFER_SANITIZE}'")
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()
if(DEEPINFER_FUZZ)
  # clang warns inside this libstdc++'s stable_sort (get_temporary_buffer), and of a vector width attribute that only g++ knows.
  add_compile_options(-fsanitize=fuzzer-no-link -Wno-deprecated-declarations -Wno-ignored-attributes)
endif()
