resource "google_monitoring_dashboard" "taskguard" {
  project = var.project

  dashboard_json = jsonencode({
    displayName = "taskguard"
    mosaicLayout = {
      columns = 48
      tiles = [for i, chart in local.charts : {
        xPos   = 24 * (i % 2)
        yPos   = 16 * floor(i / 2)
        width  = 24
        height = 16
        widget = {
          title = chart.title
          xyChart = {
            dataSets = [for legend, query in chart.queries : {
              legendTemplate  = legend
              plotType        = "LINE"
              targetAxis      = "Y1"
              timeSeriesQuery = { prometheusQuery = query, unitOverride = chart.unit }
            }]
            yAxis = { scale = "LINEAR" }
          }
        }
      }]
    }
  })

  depends_on = [google_project_service.api]
}
