# The server's part of the apps: a library that tests start in their own process, and the commands over it.
find_package(tomlplusplus REQUIRED)
set(console ${PROJECT_SOURCE_DIR}/web/index.html ${PROJECT_SOURCE_DIR}/web/console.css ${PROJECT_SOURCE_DIR}/web/console.js
  ${PROJECT_SOURCE_DIR}/web/view.js ${PROJECT_SOURCE_DIR}/web/icon.svg)
string(REPLACE ";" "|" console_list "${console}")
add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/console_files.cc
  COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_CURRENT_BINARY_DIR}/console_files.cc "-DFILES=${console_list}" -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
  DEPENDS ${console} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
add_library(di_serve_apps STATIC event_gap.cc serve_config.cc serve_settings.cc serve_constraints.cc serve_engine.cc serve_gate.cc serve_model.cc serve_run.cc batch_run.cc bench_edge.cc bench_overhead.cc http_client.cc model_source.cc otlp.cc
  ${CMAKE_CURRENT_BINARY_DIR}/console_files.cc)
target_compile_definitions(di_serve_apps PRIVATE DEEPINFER_VERSION="${PROJECT_VERSION}")
target_link_libraries(di_serve_apps PUBLIC di_store_apps di_serve di_fleet di_engine di_grammar di_checkpoint di_text PRIVATE di_grammar_bench tomlplusplus::tomlplusplus)
di_test(serve_test SOURCES batch_test.cc event_gap_test.cc serve_constraints_test.cc serve_native_test.cc serve_stream_test.cc serve_test.cc serve_config_test.cc ROOMS serve_apps TIMEOUT 120)
di_test(serve_model_test SOURCES serve_hostile_test.cc serve_model_native_test.cc serve_tools_test.cc serve_turns_test.cc ROOMS serve_apps TIMEOUT 300)
target_sources(deepinfer PRIVATE cmd_batch.cc cmd_bench_edge.cc cmd_bench_structured.cc cmd_chat.cc cmd_serve.cc cmd_usage.cc)
target_link_libraries(deepinfer PRIVATE di_serve_apps)
