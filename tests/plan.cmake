zero_test(layout USES plan)
zero_test(plan USES plan)
find_package(nlohmann_json 3.11 REQUIRED)
zero_test(plan_report USES plan config base LIBS nlohmann_json::nlohmann_json)
