# page.html stands in the program as text.
set(zero_page ${PROJECT_SOURCE_DIR}/src/report/page.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${zero_page})
file(READ ${zero_page} zero_page_text)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/report_page.cpp @ONLY CONTENT
     "namespace zero::report {\nextern const char* const kPageTemplate;\nconst char* const kPageTemplate = R\"ZERO(@zero_page_text@)ZERO\";\n}\n")
target_sources(zero_report_objects PRIVATE ${PROJECT_BINARY_DIR}/report_page.cpp)
